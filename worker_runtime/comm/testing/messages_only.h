// A group of which only messages are used: the base of collectives that play a pipeline's part.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker::testing {

// Left to a derived class: Send, StartRecv and Wait. Every other operation is Unimplemented.
class MessagesOnly : public Collective {
 public:
  MessagesOnly(int rank, int size) : rank_(rank), size_(size) {}

  const std::string& name() const override { return name_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status Call(const CollectiveCall&, Stream&) override {
    return absl::UnimplementedError("not a pipeline's call");
  }
  absl::Status Check() override { return absl::OkStatus(); }
  void Abort(absl::string_view) override {}

 private:
  const std::string name_ = "pp";
  const int rank_;
  const int size_;
};

}  // namespace convene::worker::testing
