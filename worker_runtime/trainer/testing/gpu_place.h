// Ranks as threads of one process, each with a GPU of its own and NCCL between them.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/nccl/nccl_bootstrap.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/trainer/testing/training_run.h"

namespace convene::worker::testing {

// TrainingRun::place of one run: rank r has the GPU r.
inline auto GpuPlaces(absl::Duration timeout) {
  return [timeout, store = std::make_shared<MemoryStore>()](const EngineOptions& engine,
                                                            int rank) -> absl::StatusOr<RankPlace> {
    RankPlace place;
    CONVENE_ASSIGN_OR_RETURN(place.device, Device::Cuda(rank));
    NcclBootstrapOptions options;
    options.base.connect_timeout = timeout;
    options.base.operation_timeout = timeout;
    options.base.pp_links = LinksOf(engine.schedule.placement);
    CONVENE_ASSIGN_OR_RETURN(place.communicators, BootstrapNccl(engine.layout, rank, *store,
                                                                "epoch/1", options, *place.device));
    place.collective_memory = MakeNcclMemory(place.communicators);
    return place;
  };
}

}  // namespace convene::worker::testing
