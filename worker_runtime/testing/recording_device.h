// A device of four streams on the CPU that records the ops of each stream, for tests of which ops
// may run at the same time.
//
// Ops run when they are called, so results are those of one stream. Only a broadcast's root, in a
// stream beside compute, goes on before the others are there, as on a GPU. Page faults tell which
// memory each op touches (page_watch.h), so neither the code under test nor the test declares it.
// Watched is the memory that Watch() is told, and from their first call on all memory that
// collectives of the streams beside compute, and all memory of staging() that copies were ever
// given. It is watched in whole pages: memory that two streams may touch at once must not share a
// page.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/page_watch.h"
#include "worker_runtime/testing/stream_races.h"

namespace convene::worker::testing {

// The device of one rank. Not thread-safe.
class RecordingDevice final : public Device {
 public:
  RecordingDevice();
  ~RecordingDevice() override;

  void Watch(ConstElements data);
  // The same for each block of memory() by now. Where tensors share pages, streams seem to
  // race.
  void WatchMemory();

  // Every call so far. Memory touched outside of any op stands as an op of compute, kNoOp.
  static constexpr char kNoOp[] = "no op";
  const std::vector<StreamCall>& calls() const { return calls_; }

  // `collective` with its calls seen as ops of the stream they are given. It and the device outlive
  // the result.
  std::unique_ptr<Collective> Watched(Collective& collective);

  // The kind that the code under test sees; ops work on the CPU in any case.
  void set_kind(DeviceKind kind) { kind_ = kind; }

  DeviceKind kind() const override { return kind_; }
  const std::string& description() const override { return description_; }
  int64_t memory_bytes() const override { return int64_t{1} << 40; }
  bool multiplies_float8() const override { return true; }
  Memory& memory() override { return memory_; }
  Memory& staging() override { return staging_; }
  Stream& compute() override { return compute_; }
  Stream& communication() override { return communication_; }
  Stream& layer_communication() override { return layer_communication_; }
  Stream& host() override { return host_; }
  void Zero(void* data, size_t bytes, Stream& stream) override;
  void Copy(const void* from, void* to, size_t bytes, Stream& stream) override;
  std::unique_ptr<Event> MakeEvent() override;
  void Record(Event& event, Stream& stream) override;
  void Order(Event& event, Stream& stream) override;
  absl::Status Wait(Event& event, absl::Duration timeout) override;
  absl::Status Synchronize(absl::Duration timeout) override;
  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream& stream,
                                                 absl::FunctionRef<absl::Status()> work) override;
  void Launch(Graph& graph, Stream& stream) override;
  std::unique_ptr<OpProfile> MakeProfile(Stream& stream) override;
  absl::Status status() override { return absl::OkStatus(); }

 private:
  class NumberedEvent;
  class Recorder;
  class WatchedCollective;
  // The host's memory; it is watched no more once it is given back.
  class WatchedMemory final : public Memory {
   public:
    explicit WatchedMemory(PageWatch& watch) : watch_(watch) {}
    absl::StatusOr<void*> Allocate(size_t bytes) override;
    void Free(void* data, size_t bytes) override;
    bool Holds(const void* data) const;
    const std::map<const char*, size_t>& blocks() const { return blocks_; }

   private:
    PageWatch& watch_;
    std::map<const char*, size_t> blocks_;  // their bytes, by their begin
  };

  StreamNumber NumberOf(const Stream& stream) const;
  void AddStrays();
  // Adds an op that touched all the memory touched since the last op.
  void AddOp(StreamNumber stream, std::string op);
  void AddCall(StreamCall::Kind kind, StreamNumber stream, const Event& event);

  const std::string description_ = "a CPU that plays four streams";
  DeviceKind kind_ = DeviceKind::kCpu;
  PageWatch watch_;
  WatchedMemory memory_{watch_}, staging_{watch_};
  std::unique_ptr<Recorder> compute_recorder_, communication_recorder_, layer_recorder_,
      host_recorder_;
  Stream compute_ = Stream::Cpu();
  Stream communication_ = Stream::Cpu();
  Stream layer_communication_ = Stream::Cpu();
  Stream host_ = Stream::Cpu();
  std::vector<StreamCall> calls_;
  int events_ = 0;
};

}  // namespace convene::worker::testing
