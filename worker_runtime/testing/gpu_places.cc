// Gives places.h GPUs in a program that is linked with it.
#include <cuda_runtime.h>

#include "absl/status/statusor.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/nccl/nccl_bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker::testing {
namespace {

// Rank r has the GPU r.
absl::StatusOr<Place> MakeGpuPlace(const Layout& layout, int rank, rendezvous::StoreClient& store,
                                   const PlaceOptions& options) {
  Place place;
  CONVENE_ASSIGN_OR_RETURN(place.device, Device::Cuda(rank));
  NcclBootstrapOptions bootstrap;
  bootstrap.base.operation_timeout = options.timeout;
  bootstrap.base.pp_links = options.pp_links;
  CONVENE_ASSIGN_OR_RETURN(place.communicators,
                           BootstrapNccl(layout, rank, store, "epoch/1", bootstrap, *place.device));
  place.collective_memory = MakeNcclMemory(place.communicators);
  return place;
}

[[maybe_unused]] const bool is_linked = [] {
  linked_gpu_places = {.make = MakeGpuPlace, .enter = [](int rank) { (void)cudaSetDevice(rank); }};
  return true;
}();

}  // namespace
}  // namespace convene::worker::testing
