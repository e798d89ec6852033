#include "worker_runtime/session/ranks.h"

#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/environment.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpointing/job_store.h"
#include "worker_runtime/comm/connect.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

absl::StatusOr<std::unique_ptr<Ranks>> Ranks::Join(const Layout& layout) {
  if (layout.world_size() == 1) return Start(layout, {});
  CONVENE_ASSIGN_OR_RETURN(Contract contract, ReadContract(ProcessEnvironment()));
  const int started = contract.world_size;
  if (started != layout.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tp-size ", layout.tp, " and --pp-size ", layout.pp, " want ", layout.world_size(),
        " processes, and ", started, started == 1 ? " was" : " were",
        " started: `convene generate` starts them itself, or give `convene run --nproc-per-node ",
        layout.world_size(), "`"));
  }
  return Start(layout, std::move(contract));
}

absl::StatusOr<std::unique_ptr<Ranks>> Ranks::JoinAll() {
  CONVENE_ASSIGN_OR_RETURN(Contract contract, ReadContract(ProcessEnvironment()));
  const Layout layout = {.dp = contract.world_size};
  return Start(layout, std::move(contract));
}

absl::StatusOr<std::unique_ptr<Ranks>> Ranks::Start(const Layout& layout, Contract contract) {
  std::unique_ptr<Ranks> ranks(new Ranks(layout, std::move(contract)));
  if (layout.world_size() == 1) return ranks;
  // Gloo writes to a peer that has just died: that is an error of the collective.
  std::signal(SIGPIPE, SIG_IGN);
  BlockStopSignals();
  CONVENE_ASSIGN_OR_RETURN(ranks->session_, Session::Start(ranks->contract_, ranks->stop_));
  return ranks;
}

absl::StatusOr<std::unique_ptr<Device>> Ranks::OpenDevice(const std::string& choice) const {
  const int gpus = Device::CudaCount();
  if (choice == "cpu" || (choice == "auto" && gpus == 0)) return Device::Cpu();
  auto device = Device::Cuda(gpus > 0 ? contract_.local_rank % gpus : contract_.local_rank);
  if (!device.ok()) return Annotate(device.status(), "--device cuda");
  return device;
}

absl::StatusOr<CommunicatorSet> Ranks::Connect(Device& device, absl::Duration timeout) const {
  if (layout_.world_size() == 1) return SoloCommunicators();
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<rendezvous::StoreClient> store,
                           OpenJobStore(contract_));
  ConnectOptions connect{.store_port = contract_.master_port,
                         .local_rank = contract_.local_rank,
                         .local_world_size = contract_.local_world_size};
  connect.bootstrap.store_host = contract_.master_addr;
  connect.bootstrap.operation_timeout = timeout;
  ChunkPlacement placement;
  for (int stage = 0; stage < layout_.pp; ++stage) placement.push_back(stage);
  connect.bootstrap.pp_links = LinksOf(placement);
  // The worker may become a trainer afterwards, which must not meet these addresses.
  return ConnectRanks(layout_, contract_.rank, *store, absl::StrCat(KeyPrefix(contract_), "/once"),
                      connect, device);
}

}  // namespace convene::worker
