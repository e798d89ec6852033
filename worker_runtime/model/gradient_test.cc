// The backward pass, written out by hand, against differences of the forward pass: a whole small
// model on one rank.
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/model/testing/tiny_models.h"
#include "worker_runtime/model/testing/whole_store.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr int kBatch = 2;
constexpr int kSequenceLength = 5;

ModelConfig SmallModel(bool tied) {
  // Uneven on purpose: three query heads a key head, sizes that are no power of two.
  return {.layers = 2,
          .hidden_size = 12,
          .ffn_size = 20,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 4,
          .vocabulary_size = 17,
          .tied_embeddings = tied,
          .initializer_range = 0.3};
}

class OneRankModel {
 public:
  // `document_begin`: given for packed rows. `in_halves`: the backward pass.
  explicit OneRankModel(const ModelConfig& config, Recompute recompute = Recompute::kNone,
                        const std::vector<int32_t>& document_begin = {}, bool in_halves = false)
      : config_(config),
        units_(UnitsOf(config, testing::WholeModel(config), 1, 0)),
        store_(units_, *device_),
        communicators_(SoloCommunicators()),
        stage_(Stage::Make({.config = config,
                            .recompute = recompute,
                            .packed_documents = !document_begin.empty(),
                            .micro_batch_size = kBatch,
                            .sequence_length = kSequenceLength,
                            .deferred_slots = in_halves ? 1 : 0},
                           {{0, units_}}, store_,
                           {*communicators_.tp, *communicators_.cp, *communicators_.ep}, *device_,
                           arena_, staging_)),
        in_halves_(in_halves),
        is_packed_(!document_begin.empty()),
        document_begin_(is_packed_ ? document_begin : std::vector<int32_t>(1), *device_),
        documents_({.begin = document_begin_.data()}),
        inputs_(Numbers(5, 0, config.vocabulary_size), *device_),
        targets_(Targets(config), *device_) {
    REQUIRE_OK(arena_.Build());
    REQUIRE_OK(staging_.Build());
    stage_->Bind(loss_sum_.data(), /*exact=*/nullptr);
  }

  // Routers add to the loss in training alone.
  double Loss() { return Forward(config_.experts.count > 0 ? gradient_scale_.data() : nullptr); }

  double Backward() {
    const double loss = Forward(gradient_scale_.data());
    StagePass backward = {.compute = {ComputeKind::kBackward, 0, 0},
                          .saved = 0,
                          .head = 0,
                          .gradient = 0,
                          .is_first = true,
                          .is_first_weight = true,
                          .is_last = true};
    if (in_halves_) {
      backward.compute.kind = ComputeKind::kBackwardInput;
      backward.deferred = 0;
      backward.is_last = false;
      REQUIRE_OK(stage_->Run(backward, device_->compute()));
      backward.compute.kind = ComputeKind::kBackwardWeight;
      backward.is_last = true;
    }
    REQUIRE_OK(stage_->Run(backward, device_->compute()));
    return loss;
  }

  const Placement& placement() const { return store_.placement; }
  std::vector<float> parameters() const { return store_.parameters.Fetch(); }
  void SetParameters(const std::vector<float>& values) {
    testing::Put(values, store_.parameters.data(), *device_);
  }
  std::vector<float> gradients() const { return store_.gradients.Fetch(); }

 private:
  static std::vector<int32_t> Numbers(int factor, int summand, int vocabulary_size) {
    std::vector<int32_t> numbers;
    for (int i = 0; i < kBatch * kSequenceLength; ++i) {
      numbers.push_back((i * factor + summand) % vocabulary_size);
    }
    return numbers;
  }
  static std::vector<int32_t> Targets(const ModelConfig& config) {
    std::vector<int32_t> targets = Numbers(7, 1, config.vocabulary_size);
    targets[3] = -1;
    return targets;
  }

  double Forward(const float* gradient_scale) {
    testing::Put({0.0, 0.0, 0.0}, loss_sum_.data(), *device_);
    stage_->SetBatch({.inputs = inputs_.data(),
                      .targets = targets_.data(),
                      .gradient_scale = gradient_scale,
                      .documents = is_packed_ ? &documents_ : nullptr});
    const StagePass forward = {
        .compute = {ComputeKind::kForward, 0, 0}, .saved = 0, .head = 0, .is_first = true};
    REQUIRE_OK(stage_->Run(forward, device_->compute()));
    // With what the router's losses add.
    const std::vector<double> losses = loss_sum_.Fetch();
    return losses[0] + losses[1] + losses[2];
  }

  const ModelConfig config_;
  const std::unique_ptr<Device> device_ = testing::MakeTestDevice();
  const std::vector<UnitSpec> units_;
  testing::WholeStore store_;
  CommunicatorSet communicators_;
  Arena arena_{"test", device_->memory()};
  Arena staging_{"test", device_->staging()};
  const std::unique_ptr<Stage> stage_;
  const DeviceArray<double> loss_sum_{{0.0, 0.0, 0.0}, *device_};
  const DeviceArray<float> gradient_scale_{{1.0f}, *device_};
  const bool in_halves_;
  const bool is_packed_;
  const DeviceArray<int32_t> document_begin_;
  const Documents documents_;
  const DeviceArray<int32_t> inputs_, targets_;
};

// A bias of keys adds the same to all scores of a query, which the softmax does not see, unless
// rotary positions turn it.
bool IsBlind(const ModelConfig& config, const PlacedParameter& slice) {
  return config.family->learned_positions && slice.name.ends_with("c_attn.bias") &&
         slice.offset[1] == config.heads * config.head_size;
}

// B of adapters begins as zeros, where A has no gradient.
std::vector<float> ParametersWithB(const OneRankModel& model) {
  std::vector<float> parameters = model.parameters();
  for (const PlacedParameter& slice : model.placement().parameters) {
    if (!slice.name.ends_with(".lora_B.weight")) continue;
    for (int64_t i = 0; i < slice.count(); ++i) {
      parameters[slice.flat_offset + i] = static_cast<float>(0.3 * std::sin(i + 1.0));
    }
  }
  return parameters;
}

// Along the gradient the loss must change as its length says: one number that every element of a
// tensor enters.
void CheckGradients(const ModelConfig& config, const std::vector<int32_t>& document_begin = {}) {
  OneRankModel model(config, Recompute::kNone, document_begin);
  const std::vector<float> start = ParametersWithB(model);
  model.SetParameters(start);
  model.Backward();
  const std::vector<float> gradients = model.gradients();
  for (const PlacedParameter& slice : model.placement().parameters) {
    if (slice.balances) continue;  // no gradient
    double squares = 0;
    for (int64_t i = 0; i < slice.count(); ++i) {
      squares += std::pow(gradients[slice.flat_offset + i], 2);
    }
    const double norm = std::sqrt(squares);
    INFO(slice.name);
    if (IsBlind(config, slice)) {
      CHECK(norm < 1e-5);
      continue;
    }
    REQUIRE(norm > 1e-3);
    // Large enough for float's rounding, small enough for the fifth derivative.
    const double reach = std::min(2e-2, 0.1 / norm);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = start;
      for (int64_t i = 0; i < slice.count(); ++i) {
        const int64_t place = slice.flat_offset + i;
        moved[place] += static_cast<float>(distance * gradients[place] / norm);
      }
      model.SetParameters(moved);
      return model.Loss();
    };
    // Fourth-order central difference.
    const double slope =
        (8 * (loss_at(reach) - loss_at(-reach)) - (loss_at(2 * reach) - loss_at(-2 * reach))) /
        (12 * reach);
    INFO(slice.name << ": slope " << slope << ", gradient's norm " << norm);
    CHECK(std::abs(slope - norm) < 2e-3 * norm);
  }
}

TEST_CASE("every parameter's gradient is the slope of the loss", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  CheckGradients(SmallModel(false));
}

const std::vector<int32_t> kPacked = {0, 0, 2, 2, 4, 0, 1, 1, 1, 1};

// The small model with the parts of a family.
ModelConfig SmallModelOf(const std::string& named) {
  ModelConfig config = SmallModel(false);
  config.family = NamedModel(named)->family;
  if (config.family->learned_positions) config.positions = kSequenceLength;
  if (config.family->has_window) config.sliding_window = 3;
  if (NamedModel(named)->experts.count > 0) {
    config.experts = {.count = 4,
                      // Where all are chosen no small move changes the choice.
                      .chosen = named == "moe-tiny" ? 2 : 4,
                      .ffn_size = 8,
                      .shared_ffn_size = config.family->names.shared_up != nullptr ? 8 : 0,
                      .first_dense_layers = 1,
                      .balance_loss = 0.3,
                      .z_loss = 0.05};
  }
  if (config.family->name == std::string("gemma2")) {
    config.score_cap = 0.5;  // of the size of what they cap
    config.logit_cap = 1.5;
  }
  if (config.family->has_multipliers) config.multipliers = {3, 0.2, 0.3, 2.5};
  if (config.family->latent_attention) {
    config.kv_heads = config.heads;
    config.head_size = 6;
    config.rotary_size = 2;
    config.query_rank = 7;
    config.key_rank = 9;
    config.value_size = 5;
  }
  return config;
}
TEST_CASE("so it is in each family", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const std::string& named : testing::TinyModels()) {
    INFO(named);
    CheckGradients(SmallModelOf(named));
  }
  ModelConfig of_whole_queries = SmallModelOf("mla-tiny");
  of_whole_queries.query_rank = 0;
  CheckGradients(of_whole_queries);
}

// Adapters of an expert's matrices, of all three or but two, and of those that its family calls
// alike.
ModelConfig WithAdapters(ModelConfig config, bool all) {
  const TensorNames& names = config.family->names;
  config.adapter = {.rank = 3, .alpha = 4, .targets = {names.expert_up, names.expert_down}};
  if (all) config.adapter.targets.emplace_back(names.expert_gate);
  return config;
}

TEST_CASE("so it is of the adapters of experts", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const char* named : {"moe-tiny", "deepseek-tiny", "gpt-oss-tiny", "qwen2-moe-tiny"}) {
    for (const bool all : {false, true}) {
      INFO(named << (all ? " all" : " some"));
      CheckGradients(WithAdapters(SmallModelOf(named), all));
    }
  }
}

TEST_CASE("so it is of packed documents", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  CheckGradients(SmallModel(false), kPacked);
}

TEST_CASE("what the backward pass computes again, or in halves, has the same bits", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Recompute first_block = Recompute::kFull;
  first_block.layers = 1;
  const std::pair<const char*, std::vector<int32_t>> models[] = {
      {"llama-tiny", {}},        {"llama-tiny", kPacked},
      {"qwen2-tiny", {}},        {"qwen3-tiny", {}},
      {"gpt2-tiny", {}},         {"gpt2-tiny", kPacked},
      {"mistral-tiny", kPacked}, {"gemma3-tiny", {}},
      {"mla-tiny", {}},          {"gemma2-tiny", kPacked},
      {"moe-tiny", {}},          {"deepseek-tiny", {}},
      {"gpt-oss-tiny", kPacked}, {"qwen2-moe-tiny", kPacked},
      {"granite-tiny", {}},      {"olmo2-tiny", {}}};
  for (const auto& [named, document_begin] : models) {
    ModelConfig config = SmallModelOf(named);
    if (named == std::string("qwen2-moe-tiny")) config = WithAdapters(config, /*all=*/false);
    OneRankModel kept(config, Recompute::kNone, document_begin);
    const double loss = kept.Backward();
    for (const Recompute& recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull, first_block,
          Recompute{.norms = true}, Recompute{.swiglu = true}, Recompute{.attention = true},
          Recompute{.swiglu = true, .mlp = true}, Recompute{.norms = true, .attention = true},
          Recompute{.norms = true, .swiglu = true, .attention = true, .mlp = true}}) {
      for (const bool in_halves : {false, true}) {
        INFO(named << " " << recompute.norms << recompute.swiglu << recompute.attention
                   << recompute.mlp << recompute.middle << (in_halves ? " in halves" : ""));
        OneRankModel again(config, recompute, document_begin, in_halves);
        CHECK(again.Backward() == loss);
        CHECK(again.gradients() == kept.gradients());
      }
    }
  }
}

TEST_CASE("a loss without a gradient is the same loss", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OneRankModel model(SmallModel(true));
  const double loss = model.Loss();
  CHECK(model.gradients() == std::vector<float>(model.gradients().size()));
  CHECK(model.Backward() == loss);
}

TEST_CASE("tied embeddings get both gradients", "[once]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  CheckGradients(SmallModel(true));
  ModelConfig scaled = SmallModelOf("gemma3-tiny");
  scaled.tied_embeddings = true;
  CheckGradients(scaled);
}

}  // namespace
}  // namespace convene::worker
