#include "worker_runtime/testing/places.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker::testing {
namespace {

constexpr Transport kBetweenGpus[] = {Transport::kNccl};

absl::Duration TimeoutOf(const PlaceOptions& options) {
  if (options.timeout > absl::ZeroDuration()) return options.timeout;
  return options.transport == Transport::kNccl ? absl::Minutes(5) : absl::Seconds(30);
}

std::vector<std::pair<int, int>> Circle(int size) {
  std::vector<std::pair<int, int>> links;
  for (int place = 1; place < size; ++place) links.emplace_back(place - 1, place);
  if (size > 2) links.emplace_back(0, size - 1);
  return links;
}

}  // namespace

bool OnGpus() { return linked_gpu_places.make != nullptr; }

bool HasPlacesOrSkips(int ranks) {
  if (!OnGpus() || Device::CudaCount() >= ranks) return true;
  // A case with GENERATE asks several times.
  static auto* const told = new std::set<std::string>;
  if (told->insert(Catch::getResultCapture().getCurrentTestName()).second) {
    std::printf("SKIPPED: %d CUDA devices, and %d ranks\n", Device::CudaCount(), ranks);
    std::fflush(stdout);
  }
  return false;
}

absl::Span<const Transport> TestedTransports() {
  if (OnGpus()) return kBetweenGpus;
  return kTransports;
}

std::unique_ptr<Device> MakeTestDevice() {
  SetDeterministicMatMul(true);
  if (!OnGpus()) return Device::Cpu();
  auto device = Device::Cuda(0);
  CONVENE_CHECK(device.ok());
  return *std::move(device);
}

absl::StatusOr<std::unique_ptr<Places>> Places::Make(const Layout& layout,
                                                     const PlaceOptions& given) {
  SetDeterministicMatMul(true);
  PlaceOptions options = given;
  options.timeout = TimeoutOf(given);
  if (given.pp_links.empty()) options.pp_links = Circle(layout.pp);
  const bool on_gpus = options.transport == Transport::kNccl;
  std::unique_ptr<Places> places(new Places(layout.world_size(), on_gpus));
  if (!on_gpus) {
    auto sets = MakeSets(options.transport, layout, {.timeout = options.timeout});
    for (int rank = 0; rank < places->size(); ++rank) {
      (*places)[rank] = {Device::Cpu(), std::move(sets[rank])};
    }
    return places;
  }
  MemoryStore store;
  const std::vector<absl::Status> made = places->OnEveryRank([&](int rank) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN((*places)[rank], linked_gpu_places.make(layout, rank, store, options));
    return absl::OkStatus();
  });
  for (const absl::Status& status : made) CONVENE_RETURN_IF_ERROR(status);
  return places;
}

Places::~Places() {
  OnEveryRank([&](int rank) {
    const Place ending = std::move(places_[rank]);
    return absl::OkStatus();
  });
}

std::vector<absl::Status> Places::OnEveryRank(const std::function<absl::Status(int rank)>& body) {
  std::vector<absl::Status> statuses(places_.size());
  std::vector<Thread> threads;
  for (int rank = 0; rank < size(); ++rank) {
    threads.emplace_back(absl::StrCat("rank ", rank), [&, rank] {
      if (on_gpus_) linked_gpu_places.enter(rank);
      statuses[rank] = body(rank);
    });
  }
  for (Thread& thread : threads) thread.Join();
  return statuses;
}

}  // namespace convene::worker::testing
