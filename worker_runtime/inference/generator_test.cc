// Generation is the same on each layout, and whatever is generated beside a sequence.
#include "worker_runtime/inference/generator.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/inference/testing/weights_source.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using Texts = std::vector<std::vector<int32_t>>;

constexpr int kContext = 40;

ModelConfig Small() {
  return {.layers = 2,
          .hidden_size = 16,
          .ffn_size = 32,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 4,
          .vocabulary_size = 32,
          .initializer_range = 0.5,
          .sliding_window = 6};
}

// Lengths 1, 4, 7, ...
Texts Prompts(int count) {
  Texts prompts(count);
  for (int i = 0; i < count; ++i) {
    for (int t = 0; t < 3 * i + 1; ++t) prompts[i].push_back((7 * i + 5 * t + 3) % 32);
  }
  return prompts;
}

struct Run {
  DType dtype = DType::kFloat32;
  int sequences = 2;
  int prompt_tokens = 6;
  Texts prompts = Prompts(4);
  GenerateOptions generate = {.max_new_tokens = 10};
};

absl::StatusOr<Texts> Generated(const Run& run, const Layout& layout, testing::Place& place) {
  CONVENE_ASSIGN_OR_RETURN(
      const auto model,
      LanguageModel::Make({.config = Small(),
                           .layout = layout,
                           .dtype = run.dtype,
                           .sequences = run.sequences,
                           .context = kContext,
                           .prompt_tokens = run.prompt_tokens},
                          testing::InitialWeights(Small()), place.communicators, *place.device));
  Texts texts(run.prompts.size());
  CONVENE_RETURN_IF_ERROR(
      Generate(*model, run.prompts, run.generate,
               [&](int prompt, int32_t token, SequenceEnd) -> absl::StatusOr<bool> {
                 texts[prompt].push_back(token);
                 return true;
               }));
  return texts;
}

// On one rank.
Texts Generated(const Run& run) {
  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  auto texts = Generated(run, {}, (**places)[0]);
  REQUIRE_OK(texts.status());
  return *texts;
}

GenerateOptions Sampled(double temperature) {
  return {.sampling = {.temperature = temperature, .top_p = 0.95, .seed = 11},
          .max_new_tokens = 10};
}

TEST_CASE("On each layout all ranks choose the tokens of one") {
  for (const Layout& layout :
       {Layout{.tp = 2}, Layout{.pp = 2}, Layout{.pp = 2, .tp = 2}, Layout{.dp = 2, .cp = 2}}) {
    INFO(layout.ToString());
    const int ranks = layout.world_size();
    if (!testing::HasPlacesOrSkips(ranks)) return;
    for (const GenerateOptions& generate : {GenerateOptions{.max_new_tokens = 10}, Sampled(1)}) {
      const Texts expected = Generated({.generate = generate});
      auto places = testing::Places::Make(layout);
      REQUIRE_OK(places.status());
      std::vector<Texts> texts(ranks);
      const auto statuses = (*places)->OnEveryRank([&](int rank) -> absl::Status {
        CONVENE_ASSIGN_OR_RETURN(texts[rank],
                                 Generated({.generate = generate}, layout, (**places)[rank]));
        return absl::OkStatus();
      });
      for (const absl::Status& status : statuses) REQUIRE_OK(status);
      for (const Texts& of_rank : texts) CHECK(of_rank == expected);
    }
  }
}

TEST_CASE("Texts side by side have the logits of each alone") {
  if (!testing::HasPlacesOrSkips(1)) return;
  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  const auto made = LanguageModel::Make(
      {.config = Small(), .sequences = 4, .context = kContext, .prompt_tokens = 12},
      testing::InitialWeights(Small()), (**places)[0].communicators, *(**places)[0].device);
  REQUIRE_OK(made.status());
  LanguageModel& model = **made;
  const auto extended = [&](absl::Span<const NewTokens> texts) {
    const auto logits = model.Extend(texts);
    REQUIRE_OK(logits.status());
    return std::vector<float>(logits->begin(), logits->end());
  };
  // Of 4 to 19 tokens: over two and more passes, of which some end within a text.
  Texts prompts = Prompts(7);
  prompts.erase(prompts.begin(), prompts.begin() + 3);
  std::vector<NewTokens> texts;
  std::vector<float> expected;
  for (int i = 0; i < 4; ++i) {
    texts.push_back({i, 0, prompts[i]});
    const auto alone = extended({{i, 0, prompts[i]}});
    expected.insert(expected.end(), alone.begin(), alone.end());
  }
  const std::vector<float> together = extended(texts);
  // One text goes on by a token, one by several, and one begins anew.
  const std::vector<int32_t> more = {9, 8, 7};
  const std::vector<NewTokens> next = {{2, 16, absl::MakeConstSpan(more).subspan(0, 1)},
                                       {0, 10, more},
                                       {1, 0, absl::MakeConstSpan(prompts[0])}};
  std::vector<float> mixed = extended(next);
  for (const NewTokens& text : next) {
    std::vector<int32_t> whole(prompts[text.sequence].begin(),
                               prompts[text.sequence].begin() + text.position);
    whole.insert(whole.end(), text.tokens.begin(), text.tokens.end());
    const auto alone = extended({{3, 0, whole}});
    expected.insert(expected.end(), alone.begin(), alone.end());
  }
  mixed.insert(mixed.begin(), together.begin(), together.end());
  REQUIRE(mixed.size() == expected.size());
  REQUIRE(mixed.size() == size_t{7} * Small().vocabulary_size);
  for (size_t i = 0; i < mixed.size(); ++i) CHECK(mixed[i] == Approx(expected[i]).margin(1e-4));
}

TEST_CASE("A sequence's tokens depend neither on the batch nor on how its prompt is cut") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const GenerateOptions& generate : {GenerateOptions{.max_new_tokens = 10}, Sampled(1)}) {
    const Texts expected = Generated({.sequences = 1, .prompt_tokens = 32, .generate = generate});
    CHECK(Generated({.sequences = 3, .prompt_tokens = 3, .generate = generate}) == expected);
    CHECK(Generated({.sequences = 5, .prompt_tokens = 2, .generate = generate}) == expected);
    // A prompt alone, under its own number.
    GenerateOptions third = generate;
    third.first_sequence = 2;
    CHECK(Generated({.prompts = {Prompts(4)[2]}, .generate = third})[0] == expected[2]);
  }
}

TEST_CASE("Another seed, and another sequence, have other tokens") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Run run = {.prompts = {{3}, {3}}, .generate = Sampled(2)};
  const Texts texts = Generated(run);
  CHECK(texts[0] != texts[1]);
  run.generate.sampling.seed = 12;
  CHECK(Generated(run)[0] != texts[0]);
}

TEST_CASE("In bf16 the model generates as well") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const Texts expected = Generated({});
  const Texts texts = Generated({.dtype = DType::kBFloat16});
  int equal = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    REQUIRE(texts[i].size() == expected[i].size());
    equal += texts[i][0] == expected[i][0] ? 1 : 0;
  }
  CHECK(equal >= 3);  // the first tokens are far enough from their rivals
}

// The logits behind each token, in bf16. GLM's router chooses by score + bias.
std::vector<float> LogitsWithBiases(const std::function<float(int64_t expert)>& bias) {
  ModelConfig config = NamedModel("glm4-moe-tiny").value();
  config.initializer_range = 0.05;
  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  const auto source = testing::WeightsSource(config, [&](const ParameterSlice& slice) {
    std::vector<float> values(slice.count());
    InitializeParameter(slice, 3, 0, slice.count(), values.data());
    for (int64_t i = 0; slice.balances && i < slice.count(); ++i) values[i] = bias(i);
    return values;
  });
  const auto model = LanguageModel::Make(
      {.config = config, .dtype = DType::kBFloat16, .sequences = 1, .context = kContext}, source,
      (**places)[0].communicators, *(**places)[0].device);
  REQUIRE_OK(model.status());
  std::vector<float> all;
  for (int32_t token = 0; token < 24; ++token) {
    const auto logits = (*model)->Extend({{0, token, {&token, 1}}});
    REQUIRE_OK(logits.status());
    all.insert(all.end(), logits->begin(), logits->end());
  }
  return all;
}

TEST_CASE("In bf16 a router's bias chooses as well, however far from zero all of it lies") {
  if (!testing::HasPlacesOrSkips(1)) return;
  // Seven binary digits have these.
  const auto near = [](int64_t expert) { return static_cast<float>(expert * 3 % 8 - 3.5) / 256; };
  const auto far = [&](int64_t expert) { return 6.9f + near(expert); };
  const std::vector<float> expected = LogitsWithBiases(near);
  CHECK(LogitsWithBiases(far) == expected);
  CHECK(LogitsWithBiases([](int64_t) { return 0.f; }) != expected);
}

TEST_CASE("A sequence ends with an end token, its sink's word, or a full context") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const Texts all = Generated({});
  Run run;
  run.generate.end_tokens = {31, all[1][4]};
  const Texts ended = Generated(run);
  for (size_t i = 0; i < all.size(); ++i) {
    size_t length = 0;
    while (length < all[i].size()) {
      const int32_t token = all[i][length++];
      if (token == 31 || token == all[1][4]) break;
    }
    CHECK(ended[i] == std::vector<int32_t>(all[i].begin(), all[i].begin() + length));
  }

  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  const auto model = LanguageModel::Make({.config = Small(), .sequences = 2, .context = kContext},
                                         testing::InitialWeights(Small()),
                                         (**places)[0].communicators, *(**places)[0].device);
  REQUIRE_OK(model.status());
  const std::vector<int32_t> long_prompt(kContext - 3, 5);
  int tokens[2] = {};
  SequenceEnd ends[2] = {};
  REQUIRE_OK(Generate(**model, {long_prompt, {7}}, {.max_new_tokens = 10},
                      [&](int prompt, int32_t, SequenceEnd end) -> absl::StatusOr<bool> {
                        ++tokens[prompt];
                        ends[prompt] = end;
                        return prompt == 0 || tokens[prompt] < 2;
                      }));
  CHECK(tokens[0] == 3);
  CHECK(ends[0] == SequenceEnd::kLength);
  CHECK(tokens[1] == 2);
  CHECK(ends[1] == SequenceEnd::kNotYet);

  const auto nothing = [](int, int32_t, SequenceEnd) -> absl::StatusOr<bool> { return true; };
  CHECK_STATUS(
      Generate(**model, {std::vector<int32_t>(kContext, 5)}, {.max_new_tokens = 1}, nothing),
      absl::StatusCode::kInvalidArgument,
      "prompt 1 of 1 has 40 tokens, and the context has room for 40 with the answer");
  CHECK_STATUS(Generate(**model, {{1}, {}}, {.max_new_tokens = 1}, nothing),
               absl::StatusCode::kInvalidArgument, "prompt 2 of 2 has no token");
  for (const int32_t id : {32, -1}) {
    CHECK_STATUS(Generate(**model, {{1, id}}, {.max_new_tokens = 1}, nothing),
                 absl::StatusCode::kInvalidArgument,
                 absl::StrCat("prompt 1 of 1 has the id ", id, ", and the model has 32 tokens"));
  }
}

TEST_CASE("A generation that is given up ends before the next pass, also within a prompt") {
  if (!testing::HasPlacesOrSkips(1)) return;
  // Each has six passes of six tokens.
  const Texts prompts = {std::vector<int32_t>(36, 5), std::vector<int32_t>(36, 7)};
  for (const bool sees_prompts : {false, true}) {
    for (const int passes : {0, 1, 3, 8}) {
      INFO(sees_prompts << passes);
      int asked = 0;
      Run run = {.sequences = 1, .prompts = prompts};
      run.generate.max_new_tokens = sees_prompts ? 0 : 10;
      run.generate.sees_prompts = sees_prompts;
      run.generate.see_logits = [](int, int32_t, absl::Span<const float>) {};
      run.generate.goes_on = [&] {
        return ++asked > passes ? absl::CancelledError("enough") : absl::OkStatus();
      };
      auto places = testing::Places::Make({});
      REQUIRE_OK(places.status());
      CHECK_STATUS(Generated(run, {}, (**places)[0]).status(), absl::StatusCode::kCancelled,
                   "enough");
      CHECK(asked == passes + 1);
    }
  }
}

using Seen = std::vector<std::pair<int32_t, std::vector<float>>>;

// Of each prompt.
std::vector<Seen> SeenLogits(const Texts& prompts, GenerateOptions generate, int prompt_tokens) {
  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  const auto model = LanguageModel::Make(
      {.config = Small(), .sequences = 2, .context = 3 * kContext, .prompt_tokens = prompt_tokens},
      testing::InitialWeights(Small()), (**places)[0].communicators, *(**places)[0].device);
  REQUIRE_OK(model.status());
  std::vector<Seen> seen(prompts.size());
  generate.see_logits = [&](int prompt, int32_t token, absl::Span<const float> logits) {
    seen[prompt].emplace_back(token, std::vector<float>(logits.begin(), logits.end()));
  };
  REQUIRE_OK(Generate(**model, prompts, generate,
                      [](int, int32_t, SequenceEnd) -> absl::StatusOr<bool> { return true; }));
  return seen;
}

TEST_CASE("A prompt's tokens are seen with the logits that each would be chosen from") {
  if (!testing::HasPlacesOrSkips(1)) return;
  Texts prompts = Prompts(3);
  for (int t = 0; t < 77; ++t) prompts[1].push_back((5 * t + t * t) % 32);
  for (const int prompt_tokens : {6, 64}) {
    const auto seen =
        SeenLogits(prompts, {.max_new_tokens = 2, .sees_prompts = true}, prompt_tokens);
    for (size_t i = 0; i < prompts.size(); ++i) {
      REQUIRE(seen[i].size() == prompts[i].size() + 2);
      CHECK(seen[i][0].second.empty());
      for (size_t t = 0; t < prompts[i].size(); ++t) {
        CHECK(seen[i][t].first == prompts[i][t]);
        // The same as what follows the prompt that ends here.
        const Texts cut = {{prompts[i].begin(), prompts[i].begin() + t + 1}};
        const Seen alone = SeenLogits(cut, {.max_new_tokens = 1}, prompt_tokens)[0];
        const std::vector<float>& next = seen[i][t + 1].second;
        REQUIRE(next.size() == alone[0].second.size());
        for (size_t word = 0; word < next.size(); ++word) {
          CHECK(next[word] == Approx(alone[0].second[word]).margin(1e-4));
        }
      }
    }
    const auto scored = SeenLogits(prompts, {.sees_prompts = true}, prompt_tokens);
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(scored[i] == Seen(seen[i].begin(), seen[i].end() - 2));
    }
  }
  // Logits are seen as the model made them.
  GenerateOptions sampled = Sampled(2);
  sampled.sampling.top_k = 1;
  CHECK(SeenLogits({{3}}, sampled, 6)[0][0].second ==
        SeenLogits({{3}}, {.max_new_tokens = 1}, 6)[0][0].second);
}

TEST_CASE("Too little memory is told with the flags that generation has") {
  if (!testing::HasPlacesOrSkips(1)) return;
  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  testing::Place& place = (**places)[0];
  const absl::Status status =
      LanguageModel::Make({.config = Small(), .sequences = 4096, .context = 1 << 30},
                          testing::InitialWeights(Small()), place.communicators, *place.device)
          .status();
  CHECK_STATUS(status, absl::StatusCode::kResourceExhausted, "a smaller --context");
  CHECK_THAT(std::string(status.message()), !Catch::Contains("--recompute"));
  // A context's length of it for each size of a pass would be most of the plan.
  CHECK_THAT(std::string(status.message()), !Catch::Contains("scratch/workspace x"));
}

TEST_CASE("Weights that are no numbers are an error") {
  if (!testing::HasPlacesOrSkips(1)) return;
  auto places = testing::Places::Make({});
  REQUIRE_OK(places.status());
  const auto source = testing::WeightsSource(Small(), [](const ParameterSlice& slice) {
    return std::vector<float>(slice.count(), std::numeric_limits<float>::quiet_NaN());
  });
  const auto model = LanguageModel::Make({.config = Small(), .context = kContext}, source,
                                         (**places)[0].communicators, *(**places)[0].device);
  REQUIRE_OK(model.status());
  CHECK_STATUS(Generate(**model, {{1}}, {.max_new_tokens = 1},
                        [](int, int32_t, SequenceEnd) -> absl::StatusOr<bool> { return true; }),
               absl::StatusCode::kDataLoss, "logits are not numbers");
  CHECK_STATUS(
      Generate(**model, {{1}},
               {.see_logits = [](int, int32_t, absl::Span<const float>) {}, .sees_prompts = true},
               [](int, int32_t, SequenceEnd) -> absl::StatusOr<bool> { return true; }),
      absl::StatusCode::kDataLoss, "logits are not numbers");
}

}  // namespace
}  // namespace convene::worker
