// The same tokens as transformers.generate from the same weights, and the same probabilities as
// PyTorch without a cache: trainer/testing/golden has the scripts that wrote them.
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/inference/generator.h"
#include "worker_runtime/inference/testing/weights_source.h"
#include "worker_runtime/trainer/testing/golden.h"

namespace convene::worker {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using testing::Golden;
using Texts = std::vector<std::vector<int32_t>>;

constexpr int kNewTokens = 13;
constexpr int kContext = 32;
constexpr char kGenerated[] = "worker_runtime/trainer/testing/golden/generation.json";

Texts TextsOf(const Value& list) {
  Texts texts;
  for (const Value& text : list.list_value().values()) {
    texts.emplace_back();
    for (const Value& token : text.list_value().values()) {
      texts.back().push_back(static_cast<int32_t>(token.number_value()));
    }
  }
  return texts;
}

struct Tiny {
  Tiny(const Golden& golden, int sequences, int prompt_tokens) {
    const auto weights = golden.Weights();
    auto made = LanguageModel::Make({.config = golden.Model(),
                                     .sequences = sequences,
                                     .context = kContext,
                                     .prompt_tokens = prompt_tokens},
                                    testing::WeightsSource(golden.Model(),
                                                           [&](const ParameterSlice& slice) {
                                                             return testing::BoxOf(
                                                                 weights.at(slice.name), slice);
                                                           }),
                                    communicators, *device);
    REQUIRE_OK(made.status());
    model = *std::move(made);
  }

  std::unique_ptr<Device> device = Device::Cpu();
  CommunicatorSet communicators = SoloCommunicators();
  std::unique_ptr<LanguageModel> model;
};

Texts Generated(LanguageModel& model, const Texts& prompts, double repetition_penalty) {
  Texts texts(prompts.size());
  REQUIRE_OK(Generate(
      model, prompts,
      {.sampling = {.repetition_penalty = repetition_penalty}, .max_new_tokens = kNewTokens},
      [&](int prompt, int32_t token, SequenceEnd) -> absl::StatusOr<bool> {
        texts[prompt].push_back(token);
        return true;
      }));
  return texts;
}

TEST_CASE("Each family goes on with prompts of unlike lengths as transformers does") {
  const auto json = ReadFile(kGenerated);
  REQUIRE_OK(json.status());
  Struct all;
  REQUIRE(google::protobuf::util::JsonStringToMessage(*json, &all).ok());
  int families = 0;
  for (const char* name : testing::kGoldenModels) {
    if (!all.fields().contains(name)) continue;
    ++families;
    INFO(name);
    const Struct& of_family = all.fields().at(name).struct_value();
    const Texts prompts = TextsOf(of_family.fields().at("prompts"));
    const auto& tokens = of_family.fields().at("tokens").struct_value().fields();
    // Three at once, so that the fourth prompt takes the place of one that has ended.
    Tiny tiny(Golden(name), 3, 8);
    CHECK(Generated(*tiny.model, prompts, 1) == TextsOf(tokens.at("plain")));
    CHECK(Generated(*tiny.model, prompts, 1.3) == TextsOf(tokens.at("penalty")));
  }
  CHECK(families == 17);
}

// log softmax at a token.
double LogProbability(absl::Span<const float> logits, int token) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  return logits[token] - std::log(sum);
}

TEST_CASE("With the cache each token has the probabilities of a pass over all tokens") {
  for (const char* name : testing::kGoldenModels) {
    if (std::string(name) == "packed") continue;  // rows of several documents
    const Golden golden(name);
    INFO(name);
    const std::vector<int64_t> shape = golden.Shape("log_probabilities");
    const auto expected = golden.Values<float>("log_probabilities");
    const auto tokens = golden.Values<int32_t>("tokens");
    const int length = static_cast<int>(shape[1]);
    const int vocabulary = static_cast<int>(shape[2]);
    Tiny tiny(golden, 2, 5);
    double largest = 0;
    const auto compare = [&](int row, int position, absl::Span<const float> logits) {
      const float* const at = &expected[(int64_t{row} * length + position) * vocabulary];
      for (int word = 0; word < vocabulary; ++word) {
        largest = std::max(largest, std::abs(LogProbability(logits, word) - at[word]));
      }
    };
    // The second row comes in pieces of all lengths, the first token by token behind its third.
    for (int position = 0, piece = 1; position < length; position += piece++) {
      piece = std::min(piece, length - position);
      const auto logits = tiny.model->Extend(
          {{1, position, absl::MakeConstSpan(&tokens[length + position], piece)}});
      REQUIRE_OK(logits.status());
      compare(1, position + piece - 1, *logits);
    }
    REQUIRE_OK(tiny.model->Extend({{0, 0, absl::MakeConstSpan(tokens.data(), 3)}}).status());
    for (int position = 3; position < length; ++position) {
      const auto logits =
          tiny.model->Extend({{0, position, absl::MakeConstSpan(&tokens[position], 1)}});
      REQUIRE_OK(logits.status());
      compare(0, position, *logits);
    }
    CHECK(largest < 1e-5);
  }
}

}  // namespace
}  // namespace convene::worker
