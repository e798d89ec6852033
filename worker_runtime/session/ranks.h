// The processes of a job that answers once, such as generation or a bench: their place among each
// other, and their connections.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  // The same with as many processes as were started, side by side in one dimension (dp).
  static absl::StatusOr<std::unique_ptr<Ranks>> JoinAll();

  const Layout& layout() const { return layout_; }
  // The number of this process's node.
  int node() const { return contract_.group_rank; }
  // Whether this process speaks for all: the others write no answers.
  bool speaks() const { return contract_.rank == 0; }

  // "cpu", "cuda", or "auto": a GPU where there is one. Ranks beyond the node's GPUs share them.
  // Errors: Device::Cuda's.
  absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& choice) const;

  // All ranks call it, each with a device of the same kind. `timeout`: of each call of a
  // communicator. Errors: OpenJobStore's, ConnectRanks'.
  absl::StatusOr<CommunicatorSet> Connect(
      Device& device, absl::Duration timeout = BootstrapOptions().operation_timeout) const;

 private:
  Ranks(const Layout& layout, Contract contract)
      : layout_(layout), contract_(std::move(contract)) {}
  // Listens to the agent where there are others.
  static absl::StatusOr<std::unique_ptr<Ranks>> Start(const Layout& layout, Contract contract);

  const Layout layout_;
  const Contract contract_;
  StopToken stop_;
  std::unique_ptr<Session> session_;  // null: one process
};

}  // namespace convene::worker
