// A stage keeps each promise that it makes to its observer.
#include "worker_runtime/model/stage.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/initialize.h"

namespace convene::worker {
namespace {

constexpr int kBatch = 2;
constexpr int kSequenceLength = 5;
constexpr int kMicrobatches = 3;

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
class LoneStage {
 public:
  LoneStage(const ModelConfig& config, const Layout& layout, const Coordinate& coordinate)
      : table_(BuildParameterTable(config, layout, coordinate)),
        communicators_(SoloCommunicators()),
        stage_(Stage::Make({.config = config,
                            .layout = layout,
                            .coordinate = coordinate,
                            .micro_batch_size = kBatch,
                            .sequence_length = kSequenceLength,
                            .slots = kMicrobatches},
                           table_, *communicators_.tp, *device_, arena_)),
        weights_(table_.flat_count),
        parameters_(table_.flat_count, std::numeric_limits<float>::quiet_NaN()),
        gradients_(table_.flat_count) {
    REQUIRE_OK(arena_.Build());
    for (const ParameterSlice& slice : table_.slices) {
      InitializeParameter(slice, 3, 0, slice.count(), weights_.data() + slice.flat_offset);
    }
    stage_->Bind(absl::MakeConstSpan(parameters_), absl::MakeSpan(gradients_), &loss_sum_);
    for (int i = 0; i < kMicrobatches * kBatch * kSequenceLength; ++i) {
      inputs_.push_back(i * 5 % config.vocabulary_size);
      targets_.push_back((i * 7 + 1) % config.vocabulary_size);
    }
  }

  // From now on parameters [0, flat_end) are the weights; the others are NaN.
  void Reveal(int64_t flat_end) {
    std::copy(weights_.begin(), weights_.begin() + flat_end, parameters_.begin());
  }

  // Fills the gradients with NaN, as earlier steps and their reductions may have left anything
  // there.
  void SpoilGradients() {
    for (const ParameterSlice& slice : table_.slices) {
      std::fill_n(gradients_.begin() + slice.flat_offset, slice.count(),
                  std::numeric_limits<float>::quiet_NaN());
    }
  }

  // Forward passes of all microbatches, then their backward passes.
  absl::Status Run(StageObserver* observer) {
    const float gradient_scale = 1.0f;
    stage_->SetBatch({.inputs = inputs_.data(),
                      .targets = targets_.data(),
                      .gradient_scale = &gradient_scale,
                      .microbatches = kMicrobatches,
                      .observer = observer});
    for (int m = 0; m < kMicrobatches; ++m) {
      running_ = absl::StrCat("forward ", m);
      if (table_.embedding < 0) Fill(stage_->input(m), m);
      CONVENE_RETURN_IF_ERROR(stage_->Forward(m, device_->compute()));
    }
    for (int m = 0; m < kMicrobatches; ++m) {
      running_ = absl::StrCat("backward ", m);
      if (table_.final_norm < 0) Fill(stage_->gradient(m), m + 7);
      CONVENE_RETURN_IF_ERROR(stage_->Backward(m, device_->compute()));
    }
    return absl::OkStatus();
  }

  const ParameterTable& table() const { return table_; }
  const std::vector<float>& gradients() const { return gradients_; }
  double loss_sum() const { return loss_sum_; }
  // "backward 2".
  const std::string& running() const { return running_; }

 private:
  static void Fill(Elements elements, int seed) {
    const absl::Span<float> values = elements.As<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(std::sin(static_cast<double>(i + 1) * (seed + 1)));
    }
  }

  const ParameterTable table_;
  CommunicatorSet communicators_;
  Arena arena_{"test"};
  std::unique_ptr<Device> device_ = Device::Cpu();
  std::unique_ptr<Stage> stage_;
  double loss_sum_ = 0;
  std::vector<float> weights_, parameters_, gradients_;
  std::vector<int32_t> inputs_, targets_;
  std::string running_;
};

// Gives parameters when they are asked for and not before; keeps gradients as they are when they
// are said to be final.
class Skeptic : public StageObserver {
 public:
  explicit Skeptic(LoneStage& stage) : stage_(stage), final_from_(stage.table().flat_count) {}

  void ParametersNeeded(int64_t flat_end) override {
    CHECK(stage_.running() == "forward 0");
    CHECK(flat_end >= needed_);
    needed_ = flat_end;
    stage_.Reveal(flat_end);
  }
  absl::Status GradientsFinal(int64_t flat_begin) override {
    CHECK(stage_.running() == absl::StrCat("backward ", kMicrobatches - 1));
    CHECK(flat_begin <= final_from_);
    const auto& gradients = stage_.gradients();
    final_gradients.insert(final_gradients.begin(), gradients.begin() + flat_begin,
                           gradients.begin() + final_from_);
    final_from_ = flat_begin;
    ++calls;
    return absl::OkStatus();
  }

  std::vector<float> final_gradients;  // from the last call's place on
  int calls = 0;

 private:
  LoneStage& stage_;
  int64_t needed_ = 0;
  int64_t final_from_;
};

TEST_CASE("a stage asks for parameters before it reads them, and its final gradients are final") {
  for (const bool tied : {false, true}) {
    for (const int pp : {1, 2, 3}) {
      for (int place = 0; place < pp; ++place) {
        INFO("stage " << place << " of " << pp << (tied ? ", tied" : ""));
        const Layout layout{.pp = pp};
        LoneStage told(Small(tied), layout, {.pp = place});
        LoneStage untold(Small(tied), layout, {.pp = place});
        Skeptic skeptic(told);
        REQUIRE_OK(told.Run(&skeptic));
        untold.Reveal(untold.table().flat_count);
        REQUIRE_OK(untold.Run(nullptr));
        CHECK(told.loss_sum() == untold.loss_sum());
        CHECK(told.gradients() == untold.gradients());
        CHECK(skeptic.final_gradients == told.gradients());
        // The head, each block, the norms with the embedding.
        const int groups = 6 / pp + 1 + (place == pp - 1 ? 1 : 0);
        CHECK(skeptic.calls == groups);
        CHECK(std::count(told.gradients().begin(), told.gradients().end(), 0.0f) <
              static_cast<ptrdiff_t>(told.gradients().size()) / 2);
      }
    }
  }
}

TEST_CASE("a run's gradients do not depend on what stood in their place") {
  for (const bool tied : {false, true}) {
    for (const int pp : {1, 2, 3}) {
      for (int place = 0; place < pp; ++place) {
        INFO("stage " << place << " of " << pp << (tied ? ", tied" : ""));
        LoneStage fresh(Small(tied), {.pp = pp}, {.pp = place});
        LoneStage spoilt(Small(tied), {.pp = pp}, {.pp = place});
        spoilt.SpoilGradients();
        for (LoneStage* stage : {&fresh, &spoilt}) {
          stage->Reveal(stage->table().flat_count);
          REQUIRE_OK(stage->Run(nullptr));
        }
        CHECK(spoilt.gradients() == fresh.gradients());
      }
    }
  }
}

TEST_CASE("what the observer refuses ends the backward pass") {
  class Refusal : public StageObserver {
   public:
    void ParametersNeeded(int64_t /*flat_end*/) override {}
    absl::Status GradientsFinal(int64_t /*flat_begin*/) override {
      return absl::UnavailableError("peer is gone");
    }
  };
  LoneStage stage(Small(false), {}, {});
  stage.Reveal(stage.table().flat_count);
  Refusal refusal;
  CHECK_STATUS(stage.Run(&refusal), absl::StatusCode::kUnavailable, "peer is gone");
}

}  // namespace
}  // namespace convene::worker
