// Buckets of which a rank keeps a part alone: where gradients of passes go, and when parameters are
// gathered.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

// The second of two ranks that hold the same: the other one's values stand here already.
class Twin final : public testing::ForwardingCollective {
 public:
  Twin() : ForwardingCollective(std::move(SoloCommunicators().dp)) {}

  int rank() const override { return 1; }
  int size() const override { return 2; }
  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    const bool reduces = call.kind == CollectiveKind::kReduceScatter;
    if (!reduces && call.kind != CollectiveKind::kAllGather) {
      return ForwardingCollective::Call(call, stream);
    }
    ++calls;
    float* const others = call.output.As<float>().data();
    const int64_t half = static_cast<int64_t>(call.output.count) / 2;
    float* const own = others + half;
    Copy(half, own, others, stream);
    if (reduces) AddInPlace(half, others, own, stream);
    return absl::OkStatus();
  }

  int calls = 0;
};

ModelConfig Tiny() { return NamedModel("llama-tiny").value(); }

struct TwinStore {
  explicit TwinStore(bool reshards = true)
      : store(PlaceUnits(UnitsOf(Tiny(), testing::WholeModel(Tiny()), 1, 0), 2, kUnitBuckets),
              {.shards_gradients = true,
               .shards_parameters = true,
               .reshards_after_forward = reshards},
              {.dp = reduce, .dp_gather = gather, .dp_replicate = *solo.dp, .tp = *solo.tp},
              *device, arena, arena) {
    REQUIRE_OK(arena.Build());
  }
  // Before the arena goes.
  ~TwinStore() { CHECK_OK(device->Synchronize(absl::Seconds(60))); }

  float* Gradient(int unit, int tensor, bool adds) {
    const WeightGradient gradient = store.Gradient(unit, tensor, /*is_first=*/false);
    CHECK(gradient.adds == adds);
    return gradient.data;
  }
  // All of a block's split gradients become `value`, in compute().
  void Fill(int unit, float value) {
    const Placement::Unit& place = store.placement().units[unit];
    for (const int tensor : {kQkv, kAttentionOut, kGateUp, kDown}) {
      const int64_t count = store.placement().tensors[place.tensors[tensor]].count;
      Copy(count, Values(value), Gradient(unit, tensor, false), device->compute());
    }
  }
  absl::Status Done(int unit, bool is_last) { return store.GradientsDone(unit, is_last); }
  // Whether all gradients of this rank's part of a unit are `value`.
  bool HasSum(int unit, float value) {
    const int bucket = store.placement().units[unit].bucket;
    const std::vector<float> sum =
        testing::Fetch(store.GradientsOf(store.shard().parts[bucket]), *device);
    return std::all_of(sum.begin(), sum.end(), [=](float x) { return x == value; });
  }

  // As many times `value` as any tensor has elements.
  const float* Values(float value) {
    std::unique_ptr<testing::DeviceArray<float>>& values = values_[value];
    if (values == nullptr) {
      const std::vector<float> host(store.placement().flat_count, value);
      values = std::make_unique<testing::DeviceArray<float>>(host, *device);
    }
    return values->data();
  }

  const CommunicatorSet solo = SoloCommunicators();
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  Twin reduce, gather;
  Arena arena{"test", device->memory()};
  BucketStore store;

 private:
  std::map<float, std::unique_ptr<testing::DeviceArray<float>>> values_;
};

TEST_CASE("gradients are made anew in each pass, and add up in the shard over passes and ranks") {
  if (!testing::HasPlacesOrSkips(1)) return;
  TwinStore twin;
  for (int step = 0; step < 2; ++step) {
    for (const float value : {1.0f, 2.0f, 4.0f}) {
      for (const int unit : {3, 2, 1}) {
        twin.Fill(unit, value);
        REQUIRE_OK(twin.Done(unit, /*is_last=*/value == 4.0f));
      }
    }
    REQUIRE_OK(twin.store.FinishReducing());
    for (const int unit : {1, 2, 3}) CHECK(twin.HasSum(unit, 2 * (1.0f + 2.0f + 4.0f)));
    // Nine passes, and the norms.
    CHECK(twin.reduce.calls == 10 * (step + 1));
  }
}

TEST_CASE("gradients of several forward passes add up until their backward pass") {
  if (!testing::HasPlacesOrSkips(1)) return;
  TwinStore twin;
  const int head = static_cast<int>(twin.store.placement().units.size()) - 1;
  const float* const first = twin.Gradient(head, kHead, false);
  CHECK(twin.Gradient(head, kHead, true) == first);
  REQUIRE_OK(twin.Done(head, /*is_last=*/false));
  CHECK(twin.reduce.calls == 1);
  // The last forward pass was that of an earlier backward pass.
  REQUIRE_OK(twin.Done(head, /*is_last=*/false));
  CHECK(twin.reduce.calls == 1);
  twin.Gradient(head, kHead, false);
}

TEST_CASE("where all slots hold gradients the oldest are summed as far as they are") {
  if (!testing::HasPlacesOrSkips(1)) return;
  TwinStore twin;
  twin.Fill(1, 1.0f);
  twin.Fill(2, 1.0f);
  CHECK(twin.reduce.calls == 0);
  twin.Fill(3, 1.0f);
  CHECK(twin.reduce.calls == 1);
  twin.Fill(1, 2.0f);
  CHECK(twin.reduce.calls == 2);
  for (const int unit : {1, 2, 3}) REQUIRE_OK(twin.Done(unit, /*is_last=*/true));
  REQUIRE_OK(twin.store.FinishReducing());
  CHECK(twin.HasSum(1, 2 * (1.0f + 2.0f)));
  CHECK(twin.HasSum(2, 2.0f));
  CHECK(twin.HasSum(3, 2.0f));
}

// Acquires, as the passes of one micro batch do; returns the gathers that this took.
int GathersOfPasses(TwinStore& twin) {
  const int units = static_cast<int>(twin.store.placement().units.size());
  const int before = twin.gather.calls;
  const auto pass = [&](int unit, int next) {
    const auto weights = twin.store.Acquire(unit);
    REQUIRE_OK(weights);
    if (next >= 0 && next < units) REQUIRE_OK(twin.store.Prefetch(next));
    const Placement::Unit& place = twin.store.placement().units[unit];
    for (size_t i = 0; i < weights->size(); ++i) {
      const Placement::Tensor& tensor = twin.store.placement().tensors[place.tensors[i]];
      if (tensor.bucket == 0) continue;
      const absl::Span<const float> data(static_cast<const float*>((*weights)[i]), tensor.count);
      const std::vector<float> values = testing::Fetch(data, *twin.device);
      const float expected = static_cast<float>(unit);
      CHECK(std::all_of(values.begin(), values.end(), [=](float x) { return x == expected; }));
    }
    twin.store.Release(unit);
  };
  for (int unit = 0; unit < units; ++unit) pass(unit, unit + 1);
  for (int unit = units - 1; unit >= 0; --unit) pass(unit, unit - 1);
  return twin.gather.calls - before;
}

TEST_CASE("parameters are gathered for each pass, or once after an update") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const bool reshards : {true, false}) {
    TwinStore twin(reshards);
    const FlatShard& shard = twin.store.shard();
    const int units = static_cast<int>(twin.store.placement().units.size());
    for (int step = 0; step < 2; ++step) {
      for (int unit = 0; unit < units; ++unit) {
        const ShardPart& part = shard.parts[twin.store.placement().units[unit].bucket];
        Copy(part.count, twin.Values(static_cast<float>(unit)),
             twin.store.ParametersOf(part).As<float>().data(), twin.device->compute());
        REQUIRE_OK(twin.store.Updated(unit + 1, twin.device->compute()));
      }
      // The head's, and one more, lie in the slots when the backward pass begins.
      CHECK(GathersOfPasses(twin) == (reshards ? 2 * units - 2 : units));
      // The embedding's, and one more, when the next micro batch does.
      CHECK(GathersOfPasses(twin) == (reshards ? 2 * units - 4 : 0));
    }
  }
}

TEST_CASE("over 8 ranks a rank's memory is a tenth above the formula's at most") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const auto model = NamedModel("llama-3-70b");
  REQUIRE_OK(model);
  const CommunicatorSet set = PlannedCommunicators({.dp = 8}, 0);
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  Arena arena{"test"};
  BucketStore store(
      PlaceUnits(UnitsOf(*model, testing::WholeModel(*model), 1, 0), 8, kUnitBuckets),
      {.dtype = DType::kBFloat16, .shards_gradients = true, .shards_parameters = true},
      {.dp = *set.dp,
       .dp_gather = *set.dp_gather,
       .dp_replicate = *set.dp_replicate,
       .tp = *set.tp},
      *device, arena, arena);
  const ShardedOptimizer optimizer(store, {}, *device, arena, arena);
  // DeepSpeed's estimate (stage3.py): bf16 parameters, fp32 gradients, masters and moments, of
  // which a rank has its shard; and the largest layer, gathered, with its gradients.
  const double largest = static_cast<double>(model->vocabulary_size) * model->hidden_size;
  const double formula = 18.0 * static_cast<double>(ParameterCount(*model)) / 8 + 4 * largest;
  CAPTURE(arena.PlanToString(), formula);
  CHECK(static_cast<double>(arena.total_bytes()) < 1.1 * formula);
}

}  // namespace
}  // namespace convene::worker
