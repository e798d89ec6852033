// A stage keeps each promise that it makes to its unit store.
#include "worker_runtime/model/stage.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/model/testing/whole_store.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr int kBatch = 2;
constexpr int kSequenceLength = 5;
constexpr int kMicrobatchesMax = 3;

ModelConfig Small(bool tied) {
  return {.layers = 6,
          .hidden_size = 12,
          .ffn_size = 20,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 4,
          .vocabulary_size = 17,
          .tied_embeddings = tied,
          .initializer_range = 0.3};
}

// One stage of a pipeline, whose neighbours are played: a fixed input and a fixed gradient.
template <typename Store = testing::WholeStore>
class LoneStage {
 private:
  const std::unique_ptr<Device> device_ = testing::MakeTestDevice();
  const int place_;
  const bool in_halves_;
  const int microbatches_;
  const std::vector<UnitSpec> units_;

 public:
  Store store;

  // Chunk number `place` of `chunks`, each on a rank of its own. `in_halves`: its backward passes.
  LoneStage(const ModelConfig& config, int chunks, int place, bool in_halves = false,
            int microbatches = kMicrobatchesMax)
      : place_(place),
        in_halves_(in_halves),
        microbatches_(microbatches),
        units_(UnitsOf(config, testing::EvenChunk(config, chunks, place), 1, 0)),
        store(units_, *device_),
        communicators_(SoloCommunicators()),
        stage_(Stage::Make({.config = config,
                            .micro_batch_size = kBatch,
                            .sequence_length = kSequenceLength,
                            .saved_slots = microbatches,
                            .deferred_slots = in_halves ? microbatches : 0,
                            .head_slots = microbatches,
                            .activation_slots = 2 * microbatches,
                            .gradient_slots = microbatches},
                           {{place, units_}}, store,
                           {*communicators_.tp, *communicators_.cp, *communicators_.ep}, *device_,
                           arena_, staging_)),
        inputs_(Numbers(5, 0, config), *device_),
        targets_(Numbers(7, 1, config), *device_) {
    REQUIRE_OK(arena_.Build());
    REQUIRE_OK(staging_.Build());
    stage_->Bind(loss_sum_.data(), /*exact=*/nullptr);
  }

  // Forward passes of all microbatches, then their backward passes.
  absl::Status Run() {
    stage_->SetBatch({.inputs = inputs_.data(),
                      .targets = targets_.data(),
                      .gradient_scale = gradient_scale_.data()});
    for (int m = 0; m < microbatches_; ++m) {
      if (units_.front().kind != UnitKind::kEmbedding) Fill(stage_->activation(m), m);
      CONVENE_RETURN_IF_ERROR(stage_->Run(PassOf(ComputeKind::kForward, m), device_->compute()));
    }
    for (int m = 0; m < microbatches_; ++m) {
      if (units_.back().kind != UnitKind::kHead) Fill(stage_->gradient(m), m + 7);
      CONVENE_RETURN_IF_ERROR(
          stage_->Run(PassOf(in_halves_ ? ComputeKind::kBackwardInput : ComputeKind::kBackward, m),
                      device_->compute()));
    }
    for (int m = 0; in_halves_ && m < microbatches_; ++m) {
      CONVENE_RETURN_IF_ERROR(
          stage_->Run(PassOf(ComputeKind::kBackwardWeight, m), device_->compute()));
    }
    return absl::OkStatus();
  }

  double loss_sum() const { return loss_sum_.Fetch()[0]; }
  size_t memory_bytes() const { return arena_.total_bytes(); }

 private:
  // Every microbatch has slots of its own.
  StagePass PassOf(ComputeKind kind, int microbatch) const {
    const bool is_half =
        kind == ComputeKind::kBackwardInput || kind == ComputeKind::kBackwardWeight;
    return {.compute = {kind, place_, microbatch},
            .saved = microbatch,
            .deferred = is_half ? microbatch : -1,
            .head = units_.back().kind == UnitKind::kHead ? microbatch : -1,
            .input = units_.front().kind == UnitKind::kEmbedding ? -1 : microbatch,
            .output = units_.back().kind == UnitKind::kHead ? -1 : microbatches_ + microbatch,
            .gradient = microbatch,
            .is_first = microbatch == 0,
            .is_first_weight = microbatch == 0,
            .is_last = kind != ComputeKind::kBackwardInput && microbatch == microbatches_ - 1};
  }
  std::vector<int32_t> Numbers(int factor, int summand, const ModelConfig& config) const {
    std::vector<int32_t> numbers;
    for (int i = 0; i < microbatches_ * kBatch * kSequenceLength; ++i) {
      numbers.push_back((i * factor + summand) % config.vocabulary_size);
    }
    return numbers;
  }
  void Fill(Elements elements, int seed) {
    std::vector<float> values;
    for (size_t i = 0; i < elements.count; ++i) {
      values.push_back(static_cast<float>(std::sin(static_cast<double>(i + 1) * (seed + 1))));
    }
    testing::Put(values, elements.As<float>().data(), *device_);
  }

  CommunicatorSet communicators_;
  Arena arena_{"test", device_->memory()};
  Arena staging_{"test", device_->staging()};
  const std::unique_ptr<Stage> stage_;
  const DeviceArray<double> loss_sum_{{0.0}, *device_};
  const DeviceArray<float> gradient_scale_{{1.0f}, *device_};
  const DeviceArray<int32_t> inputs_, targets_;
};

// Gives weights when they are asked for and not before, for one unit at a time; keeps gradients as
// they are when they are said to be final.
class Skeptic : public testing::WholeStore {
 public:
  std::vector<float> final_gradients;
  size_t units_done = 0;

  Skeptic(const std::vector<UnitSpec>& units, Device& its_device)
      : WholeStore(units, its_device),
        final_gradients(gradients.span().size()),
        weights_(parameters.Fetch()) {
    Hide();
  }

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override {
    Hide();
    for (const int tensor : placement.units[unit].tensors) {
      const auto [begin, count, bucket, last_unit] = placement.tensors[tensor];
      const auto first = weights_.begin() + begin;
      testing::Put(std::vector<float>(first, first + count), parameters.data() + begin, device);
    }
    return WholeStore::Acquire(unit);
  }
  // A tensor that two units share is final when the last of both is done.
  absl::Status GradientsDone(int unit, bool is_last) override {
    if (!is_last) return absl::OkStatus();
    for (const int tensor : placement.units[unit].tensors) {
      const auto [begin, count, bucket, last_unit] = placement.tensors[tensor];
      const auto now = testing::Fetch(gradients.span().subspan(begin, count), device);
      std::copy(now.begin(), now.end(), final_gradients.begin() + begin);
    }
    ++units_done;
    return absl::OkStatus();
  }

 private:
  void Hide() {
    const std::vector<float> nans(weights_.size(), std::numeric_limits<float>::quiet_NaN());
    testing::Put(nans, parameters.data(), device);
  }

  const std::vector<float> weights_;
};

template <typename Check>
void OnEveryStage(Check check) {
  for (const bool in_halves : {false, true}) {
    for (const bool tied : {false, true}) {
      for (const int pp : {1, 2, 3}) {
        if (testing::OnGpus() && pp != 2) continue;  // every unit, and both ends of a stage
        for (int place = 0; place < pp; ++place) {
          INFO("stage " << place << " of " << pp << (tied ? ", tied" : "")
                        << (in_halves ? ", in halves" : ""));
          check(Small(tied), pp, place, in_halves);
        }
      }
    }
  }
}

TEST_CASE("a unit reads the weights that it acquired, and gradients said to be final are final",
          "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OnEveryStage([](const ModelConfig& config, int chunks, int place, bool in_halves) {
    LoneStage<Skeptic> told(config, chunks, place, in_halves);
    LoneStage untold(config, chunks, place);
    REQUIRE_OK(told.Run());
    REQUIRE_OK(untold.Run());
    CHECK(told.loss_sum() == untold.loss_sum());
    const std::vector<float> gradients = told.store.gradients.Fetch();
    CHECK(gradients == untold.store.gradients.Fetch());
    CHECK(told.store.final_gradients == gradients);
    CHECK(told.store.units_done == told.store.placement.units.size());
    CHECK(std::count(gradients.begin(), gradients.end(), 0.0f) <
          static_cast<ptrdiff_t>(gradients.size()) / 2);
  });
}

TEST_CASE("a run's gradients do not depend on what stood in their place", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OnEveryStage([](const ModelConfig& config, int chunks, int place, bool in_halves) {
    LoneStage fresh(config, chunks, place, in_halves);
    LoneStage spoilt(config, chunks, place, in_halves);
    // Earlier steps and their reductions may have left anything in a tensor.
    for (const auto [begin, count, bucket, last_unit] : spoilt.store.placement.tensors) {
      const std::vector<float> nans(count, std::numeric_limits<float>::quiet_NaN());
      testing::Put(nans, spoilt.store.gradients.data() + begin, spoilt.store.device);
    }
    for (LoneStage<>* stage : {&fresh, &spoilt}) REQUIRE_OK(stage->Run());
    CHECK(spoilt.store.gradients.Fetch() == fresh.store.gradients.Fetch());
  });
}

// Its gradients lie idle until their backward pass.
class Lender : public testing::WholeStore {
 public:
  Lender(const std::vector<UnitSpec>& units, Device& its_device)
      : WholeStore(units, its_device),
        arena_("gradients", device.memory()),
        lent_(arena_.Declare<float>("gradients", placement.flat_count)) {
    REQUIRE_OK(arena_.Build());
    const std::vector<float> nans(lent_.size(), std::numeric_limits<float>::quiet_NaN());
    testing::Put(nans, At(lent_), device);
  }

  ArenaBlock<float> IdleGradients(int unit) const override {
    const auto [begin, end] = TensorsBefore(placement, unit);
    return lent_.Slice(begin, end - begin);
  }
  WeightGradient Gradient(int unit, int tensor, bool is_first) override {
    WeightGradient gradient = WholeStore::Gradient(unit, tensor, is_first);
    gradient.data += At(lent_) - gradients.data();
    return gradient;
  }
  absl::Status GradientsDone(int unit, bool /*is_last*/) override {
    for (const int tensor : placement.units[unit].tensors) {
      const auto [begin, count, bucket, last_unit] = placement.tensors[tensor];
      Copy(count, At(lent_) + begin, gradients.data() + begin, device.compute());
    }
    return absl::OkStatus();
  }

 private:
  Arena arena_;
  const ArenaBlock<float> lent_;
};

TEST_CASE("activations lie in idle gradients, where there are some, and change none of them",
          "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OnEveryStage([](const ModelConfig& config, int chunks, int place, bool in_halves) {
    LoneStage<Lender> lent(config, chunks, place, in_halves, /*microbatches=*/1);
    LoneStage own(config, chunks, place, in_halves, /*microbatches=*/1);
    for (int step = 0; step < 2; ++step) {
      REQUIRE_OK(lent.Run());
      REQUIRE_OK(own.Run());
      CHECK(lent.loss_sum() == own.loss_sum());
      CHECK(lent.store.gradients.Fetch() == own.store.gradients.Fetch());
    }
    CHECK((lent.memory_bytes() == own.memory_bytes()) == in_halves);
  });
}

TEST_CASE("what the store refuses ends the pass", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  class Refusal : public testing::WholeStore {
   public:
    using WholeStore::WholeStore;
    absl::Status GradientsDone(int /*unit*/, bool /*is_last*/) override {
      return absl::UnavailableError("peer is gone");
    }
  };
  LoneStage<Refusal> stage(Small(false), 1, 0);
  CHECK_STATUS(stage.Run(), absl::StatusCode::kUnavailable, "peer is gone");
}

}  // namespace
}  // namespace convene::worker
