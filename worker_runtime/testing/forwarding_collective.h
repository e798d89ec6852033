// A collective that passes every call on to another one. Tests override the calls that they want to
// see or to change.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "worker_runtime/comm/collective.h"

namespace convene::worker::testing {

class ForwardingCollective : public Collective {
 public:
  explicit ForwardingCollective(std::unique_ptr<Collective> base) : base_(std::move(base)) {}

  const std::string& name() const override { return base_->name(); }
  int rank() const override { return base_->rank(); }
  int size() const override { return base_->size(); }
  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    return base_->Call(call, stream);
  }
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override {
    return base_->Send(data, peer, stream);
  }
  absl::Status Wait(PendingMessage pending, Stream& stream) override {
    return base_->Wait(pending, stream);
  }
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override {
    return base_->StartRecv(data, peer, stream);
  }
  absl::Status Check() override { return base_->Check(); }
  void Abort(absl::string_view why) override { base_->Abort(why); }

 private:
  const std::unique_ptr<Collective> base_;
};

}  // namespace convene::worker::testing
