#include "worker_runtime/shard/copied_slices.h"

#include <algorithm>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

constexpr int kTp = 4;
constexpr int kDp = 2;

float GradientAt(int64_t place, int tp_rank) {
  return static_cast<float>(place % 7 + 10 * tp_rank);
}

// By place in the flat buffer: how many ranks hold what lies there; 0 outside the shard.
std::vector<int> CopiesAt(const Placement& placement, const FlatShard& shard) {
  std::vector<int> copies(placement.flat_count);
  for (const ShardSegment& segment : shard.segments) {
    std::fill_n(copies.begin() + segment.flat_begin, segment.count,
                placement.parameters[segment.parameter].tp_copies);
  }
  return copies;
}

TEST_CASE("copies get their sum, and nothing else changes") {
  const int kv_heads = GENERATE(1, 2, 8);
  const int dp_rank = GENERATE(0, 1);
  CAPTURE(kv_heads, dp_rank);
  auto config = NamedModel("llama-tiny");
  REQUIRE_OK(config);
  config->kv_heads = kv_heads;
  const Layout layout = {.tp = kTp};
  if (!testing::HasPlacesOrSkips(kTp)) return;
  const auto places = testing::Places::Make(layout);
  REQUIRE_OK(places);
  std::vector<Placement> placements;
  std::vector<std::vector<float>> gradients(kTp);
  for (int rank = 0; rank < kTp; ++rank) {
    placements.push_back(PlaceUnits(UnitsOf(*config, testing::WholeModel(*config), kTp, rank), kDp,
                                    /*bucket_count_min=*/60'000));
    for (int64_t i = 0; i < placements[rank].flat_count; ++i) {
      gradients[rank].push_back(GradientAt(i, rank));
    }
  }
  const auto sum = [&](int rank) -> absl::Status {
    auto& [device, communicators, collective_memory] = (**places)[rank];
    Arena arena("test", device->memory());
    const FlatShard shard = MakeFlatShard(placements[rank], kDp, dp_rank);
    CopiedSlices slices(placements[rank], shard, *communicators.tp, *device, arena);
    CONVENE_RETURN_IF_ERROR(arena.Build());
    const testing::DeviceArray<float> all(gradients[rank], *device);
    CONVENE_RETURN_IF_ERROR(slices.Sum(
        [&](const ShardPart& part) { return all.span().subspan(part.flat_begin, part.count); }));
    gradients[rank] = all.Fetch();
    return device->status();
  };
  const std::vector<absl::Status> statuses = (*places)->OnEveryRank(sum);
  int64_t summed = 0;
  int64_t wrong = 0;
  for (int rank = 0; rank < kTp; ++rank) {
    REQUIRE_OK(statuses[rank]);
    const std::vector<int> copies_at =
        CopiesAt(placements[rank], MakeFlatShard(placements[rank], kDp, dp_rank));
    for (int64_t i = 0; i < placements[rank].flat_count; ++i) {
      const int copies = std::max(1, copies_at[i]);
      const int first = rank / copies * copies;
      float expected = 0;
      for (int copy = first; copy < first + copies; ++copy) expected += GradientAt(i, copy);
      wrong += gradients[rank][i] != expected;
      summed += copies > 1;
    }
  }
  CHECK(wrong == 0);
  CHECK((summed > 0) == (kv_heads < kTp));
}

}  // namespace
}  // namespace convene::worker
