// Parameters that never change, in a store of bf16.
#include "worker_runtime/shard/frozen_weights.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

// One of two ranks, whose peer never answers.
class OneOfTwo final : public testing::ForwardingCollective {
 public:
  explicit OneOfTwo(int rank)
      : ForwardingCollective(std::move(SoloCommunicators().dp)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return 2; }
  absl::Status Call(const CollectiveCall&, Stream&) override { return absl::OkStatus(); }

 private:
  const int rank_;
};

using ValuesByName = std::map<std::string, std::vector<float>>;

// Adds what the rank's shard has of each slice.
void AddOwn(int rank, const MakeWeights& make, ValuesByName* values) {
  ModelConfig config = NamedModel("glm4-moe-tiny").value();
  config.experts.count = 256;
  const CommunicatorSet solo = SoloCommunicators();
  const auto device = testing::MakeTestDevice();
  OneOfTwo reduce(rank), gather(rank);
  Arena arena("test", device->memory());
  BucketStore store(PlaceUnits(UnitsOf(config, testing::WholeModel(config), 1, 0), 2, kUnitBuckets),
                    {.dtype = DType::kBFloat16, .is_frozen = true},
                    {.dp = reduce, .dp_gather = gather, .dp_replicate = *solo.dp, .tp = *solo.tp},
                    *device, arena, arena);
  REQUIRE_OK(arena.Build());
  const FrozenWeights frozen(store, *device, absl::Seconds(60));
  REQUIRE_OK(frozen.Fill(make));
  REQUIRE_OK(frozen.Publish());
  REQUIRE_OK(device->Synchronize(absl::Seconds(60)));
  for (const ShardSegment& segment : store.shard().segments) {
    const ParameterSlice& slice = store.placement().parameters[segment.parameter];
    const ShardPart& part = store.shard().parts[segment.part];
    const auto own = testing::Fetch(store.ParametersOf(part)
                                        .Slice(segment.flat_begin - part.flat_begin, segment.count)
                                        .As<BFloat16>(),
                                    *device);
    std::vector<float>& all = (*values)[slice.name];
    all.resize(slice.count(), 1e9f);
    for (size_t i = 0; i < own.size(); ++i) {
      all[segment.slice_begin + i] = static_cast<float>(own[i]);
    }
  }
}

TEST_CASE("frozen weights are rounded, and a router's bias keeps what tells its experts apart") {
  const auto make = [](const ParameterSlice& slice, int64_t first, absl::Span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const auto element = static_cast<float>((first + static_cast<int64_t>(i)) % 256);
      values[i] = slice.balances ? 6.8f + 0.001f * element : 1 + element / 256;
    }
  };
  ValuesByName values;
  for (const int rank : {0, 1}) AddOwn(rank, make, &values);
  const std::vector<float>& norm = values.at("model.norm.weight");
  for (size_t i = 0; i < norm.size(); ++i) {
    CHECK(norm[i] == static_cast<float>(BFloat16(1 + static_cast<float>(i) / 256)));
  }
  for (int layer = 1; layer < 8; ++layer) {
    const std::vector<float>& bias =
        values.at("model.layers." + std::to_string(layer) + ".mlp.gate.e_score_correction_bias");
    REQUIRE(bias.size() == 256);
    // Far from zero bf16 has steps of 0.03.
    float largest_error = 0;
    for (size_t i = 0; i < bias.size(); ++i) {
      const float wanted = 0.001f * static_cast<float>(i);
      largest_error = std::max(largest_error, std::abs(bias[i] - bias[0] - wanted));
    }
    CHECK(largest_error < 0.001);
  }
}

}  // namespace
}  // namespace convene::worker
