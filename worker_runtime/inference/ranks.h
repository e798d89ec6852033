// The processes that generate together: their place among each other, and their connections.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/session/session.h"
#include "worker_runtime/session/stop_token.h"

namespace convene::worker {

// This process among those of the layout. Lives until the process has answered.
class Ranks {
 public:
  // Reads the environment, and listens to the agent where there is one: its word, or a signal, ends
  // the process at once. A layout of one process reads nothing. InvalidArgument: another number of
  // processes than the layout has. Errors else: ReadContract's, Session::Start's.
  static absl::StatusOr<std::unique_ptr<Ranks>> Join(const Layout& layout);

  const Layout& layout() const { return layout_; }
  int local_rank() const { return contract_.local_rank; }
  // Whether this process speaks for all: the others write no answers.
  bool speaks() const { return contract_.rank == 0; }

  // All ranks call it, each with a device of the same kind. Errors: OpenJobStore's, ConnectRanks'.
  absl::StatusOr<CommunicatorSet> Connect(Device& device) const;

 private:
  explicit Ranks(const Layout& layout) : layout_(layout) {}

  const Layout layout_;
  Contract contract_;
  StopToken stop_;
  std::unique_ptr<Session> session_;  // null: one process
};

}  // namespace convene::worker
