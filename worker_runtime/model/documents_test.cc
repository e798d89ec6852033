// The promise of packing: a row of several documents trains like a row for each of them.
#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/model/testing/whole_store.h"
#include "worker_runtime/ops/documents.h"

namespace convene::worker {
namespace {

constexpr int kVocabulary = 31;

// The loss of each token of one row, and the gradient of their sum.
struct Losses {
  std::vector<double> losses;
  std::vector<float> gradients;
};

// `document_begin`: empty where the row is not packed. Target of token t is its own number plus 3.
Losses LossesOf(const char* named, const std::vector<int32_t>& tokens,
                const std::vector<int32_t>& document_begin) {
  const Family* const family = NamedModel(named)->family;
  const bool is_latent = family->latent_attention;
  const ModelConfig config = {.layers = 2,
                              .hidden_size = 24,
                              .ffn_size = 40,
                              .heads = 4,
                              .kv_heads = is_latent ? 4 : 2,
                              .head_size = 6,
                              .vocabulary_size = kVocabulary,
                              .initializer_range = 0.3,
                              .positions = family->learned_positions ? 140 : 0,
                              .sliding_window = family->has_window ? 20 : 0,
                              .rotary_size = is_latent ? 4 : 0,
                              .query_rank = is_latent ? 10 : 0,
                              .key_rank = is_latent ? 8 : 0,
                              .value_size = is_latent ? 5 : 0,
                              .family = family};
  const std::vector<UnitSpec> units = UnitsOf(config, testing::WholeModel(config), 1, 0);
  const std::unique_ptr<Device> device = Device::Cpu();
  testing::WholeStore store(units, *device);
  const CommunicatorSet communicators = SoloCommunicators();
  Arena arena("test"), staging("test");
  const std::unique_ptr<Stage> stage =
      Stage::Make({.config = config,
                   .packed_documents = !document_begin.empty(),
                   .sequence_length = static_cast<int>(tokens.size())},
                  {{0, units}}, store, {*communicators.tp, *communicators.cp, *communicators.ep},
                  *device, arena, staging);
  REQUIRE_OK(arena.Build());
  REQUIRE_OK(staging.Build());
  Losses result;
  double loss = 0;
  stage->Bind(&loss, /*exact=*/nullptr);
  const Documents documents = {.begin = document_begin.data()};
  const Documents* const given = document_begin.empty() ? nullptr : &documents;
  std::vector<int32_t> targets(tokens.size(), -1);
  const StagePass forward = {
      .compute = {ComputeKind::kForward, 0, 0}, .saved = 0, .head = 0, .is_first = true};
  const StagePass backward = {.compute = {ComputeKind::kBackward, 0, 0},
                              .saved = 0,
                              .head = 0,
                              .gradient = 0,
                              .is_first = true,
                              .is_first_weight = true,
                              .is_last = true};
  for (size_t t = 0; t < tokens.size(); ++t) {
    targets[t] = (tokens[t] + 3) % kVocabulary;
    loss = 0;
    stage->SetBatch({.inputs = tokens.data(), .targets = targets.data(), .documents = given});
    REQUIRE_OK(stage->Run(forward, device->compute()));
    result.losses.push_back(loss);
    targets[t] = -1;
  }
  for (size_t t = 0; t < tokens.size(); ++t) targets[t] = (tokens[t] + 3) % kVocabulary;
  const float scale = 1.0f;
  stage->SetBatch({.inputs = tokens.data(),
                   .targets = targets.data(),
                   .gradient_scale = &scale,
                   .documents = given});
  REQUIRE_OK(stage->Run(forward, device->compute()));
  REQUIRE_OK(stage->Run(backward, device->compute()));
  result.gradients = store.gradients.Fetch();
  return result;
}

std::vector<int32_t> Tokens(int count, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * i + seed * (i + 1)) % kVocabulary);
  return tokens;
}

TEST_CASE("a packed row has the losses and gradients of its documents alone") {
  const char* const named = GENERATE("llama-tiny", "qwen2-tiny", "qwen3-tiny", "gpt2-tiny",
                                     "mistral-tiny", "gemma3-tiny", "mla-tiny", "gemma2-tiny");
  CAPTURE(named);
  // Lengths around the sizes in which attention works.
  const std::vector<std::vector<int32_t>> documents = {Tokens(13, 5), Tokens(1, 7), Tokens(48, 11),
                                                       Tokens(70, 2)};
  std::vector<int32_t> row;
  std::vector<int32_t> begins;
  std::vector<double> losses;
  std::vector<double> gradients;
  for (const std::vector<int32_t>& document : documents) {
    begins.insert(begins.end(), document.size(), static_cast<int32_t>(row.size()));
    row.insert(row.end(), document.begin(), document.end());
    const Losses alone = LossesOf(named, document, {});
    losses.insert(losses.end(), alone.losses.begin(), alone.losses.end());
    gradients.resize(alone.gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] += alone.gradients[i];
  }
  const Losses packed = LossesOf(named, row, begins);
  for (size_t t = 0; t < row.size(); ++t) {
    CAPTURE(t);
    CHECK(packed.losses[t] == Approx(losses[t]).epsilon(1e-5));
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    CAPTURE(i);
    CHECK(packed.gradients[i] == Approx(gradients[i]).epsilon(1e-4).margin(1e-4));
  }
  // The result differs from that of the row as one document.
  const Losses plain = LossesOf(named, row, {});
  CHECK(plain.losses[12] == Approx(packed.losses[12]).epsilon(1e-5));
  CHECK(plain.losses[20] != Approx(packed.losses[20]).epsilon(1e-3));
}

}  // namespace
}  // namespace convene::worker
