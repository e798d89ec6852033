// A device that passes every call on to another one. Tests override the calls that they want to see
// or to fail.
#pragma once

#include <memory>
#include <string>

#include "worker_runtime/device/device.h"

namespace convene::worker::testing {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& device) : device_(device) {}

  DeviceKind kind() const override { return device_.kind(); }
  const std::string& description() const override { return device_.description(); }
  int64_t memory_bytes() const override { return device_.memory_bytes(); }
  bool multiplies_float8() const override { return device_.multiplies_float8(); }
  Memory& memory() override { return device_.memory(); }
  Memory& staging() override { return device_.staging(); }
  Stream& compute() override { return device_.compute(); }
  Stream& communication() override { return device_.communication(); }
  Stream& layer_communication() override { return device_.layer_communication(); }
  Stream& host() override { return device_.host(); }
  void Zero(void* data, size_t bytes, Stream& stream) override {
    device_.Zero(data, bytes, stream);
  }
  void Copy(const void* from, void* to, size_t bytes, Stream& stream) override {
    device_.Copy(from, to, bytes, stream);
  }
  std::unique_ptr<Event> MakeEvent() override { return device_.MakeEvent(); }
  void Record(Event& event, Stream& stream) override { device_.Record(event, stream); }
  void Order(Event& event, Stream& stream) override { device_.Order(event, stream); }
  absl::Status Wait(Event& event, absl::Duration timeout) override {
    return device_.Wait(event, timeout);
  }
  absl::Status Synchronize(absl::Duration timeout) override { return device_.Synchronize(timeout); }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream& stream,
                                                 absl::FunctionRef<absl::Status()> work) override {
    return device_.Capture(stream, work);
  }
  void Launch(Graph& graph, Stream& stream) override { device_.Launch(graph, stream); }
  std::unique_ptr<OpProfile> MakeProfile(Stream& stream) override {
    return device_.MakeProfile(stream);
  }
  absl::Status status() override { return device_.status(); }

 private:
  Device& device_;
};

}  // namespace convene::worker::testing
