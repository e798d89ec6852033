#include "worker_runtime/inference/evaluation.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/inference/testing/weights_source.h"
#include "worker_runtime/trainer/testing/golden.h"

namespace convene::worker {
namespace {

using testing::Golden;

// A golden model, whose log probabilities of one row of tokens are PyTorch's.
struct Tiny {
  explicit Tiny(const char* name, int window = 0, bool is_broken = false) : golden(name) {
    const std::vector<int64_t> shape = golden.Shape("log_probabilities");
    length = static_cast<int>(shape[1]);
    vocabulary = static_cast<int>(shape[2]);
    const auto all = golden.Values<int32_t>("tokens");
    tokens.assign(all.begin(), all.begin() + length);
    log_probabilities = golden.Values<float>("log_probabilities");
    auto weights = golden.Weights();
    if (is_broken) weights.begin()->second[0] = std::nanf("");
    auto made =
        Scorer::Make({.config = golden.Model(), .window = window > 0 ? window : length},
                     testing::WeightsSource(golden.Model(),
                                            [&](const ParameterSlice& slice) {
                                              return testing::BoxOf(weights.at(slice.name), slice);
                                            }),
                     communicators, *device);
    REQUIRE_OK(made.status());
    scorer = *std::move(made);
  }

  // The loss of the token at `place`, with all those before it.
  double LossAt(int place) const {
    return -log_probabilities[size_t{1} * (place - 1) * vocabulary + tokens[place]];
  }

  const Golden golden;
  std::unique_ptr<Device> device = Device::Cpu();
  CommunicatorSet communicators = SoloCommunicators();
  std::unique_ptr<Scorer> scorer;
  int length = 0, vocabulary = 0;
  std::vector<int32_t> tokens;
  std::vector<float> log_probabilities;
};

TEST_CASE("a text's loss is PyTorch's, and each token but the first counts once") {
  for (const char* const name : {"untied", "gemma2", "mixtral", "gpt_oss"}) {
    INFO(name);
    const Tiny tiny(name);
    double expected = 0;
    for (int place = 1; place < tiny.length; ++place) expected += tiny.LossAt(place);
    TextScore score;
    const std::vector<uint16_t> bytes(tiny.vocabulary, 3);
    REQUIRE_OK(ScoreText(*tiny.scorer, tiny.tokens, {}, bytes, &score));
    CHECK(score.tokens == tiny.length - 1);
    CHECK(score.bytes == 3 * score.tokens);
    CHECK(score.loss == Approx(expected).epsilon(1e-5));
    CHECK(score.perplexity() == Approx(std::exp(expected / score.tokens)).epsilon(1e-5));
    CHECK(score.bits_per_byte() ==
          Approx(expected / std::log(2) / static_cast<double>(score.bytes)).epsilon(1e-5));
  }
}

TEST_CASE(
    "a text that is shorter than the window is computed in a shorter pass, for the same loss") {
  for (const char* const name : {"untied", "gemma2", "mixtral", "gpt_oss"}) {
    INFO(name);
    const Tiny own(name);
    const Tiny wide(name, 300);
    TextScore expected, score;
    REQUIRE_OK(ScoreText(*own.scorer, own.tokens, {}, {}, &expected));
    REQUIRE_OK(ScoreText(*wide.scorer, own.tokens, {}, {}, &score));
    CHECK(score.tokens == expected.tokens);
    CHECK(score.loss == Approx(expected.loss).epsilon(1e-6));
  }
  const Tiny wide("untied", 300);
  CHECK(wide.scorer->PassFor(1) == 16);
  CHECK(wide.scorer->PassFor(16) == 16);
  CHECK(wide.scorer->PassFor(17) == 32);
  CHECK(wide.scorer->PassFor(256) == 256);
  CHECK(wide.scorer->PassFor(257) == 300);
  CHECK(Tiny("untied", 4).scorer->PassFor(1) == 4);
}

TEST_CASE("windows lie side by side, and tokens that do not count are left out") {
  const Tiny whole("untied");
  const Tiny cut("untied", 4);
  TextScore windows, first;
  REQUIRE_OK(ScoreText(*cut.scorer, whole.tokens, {}, {}, &windows));
  CHECK(windows.tokens == whole.length - 1);
  CHECK(windows.bytes == 0);
  CHECK(windows.bits_per_byte() == 0);
  // The first window sees what the whole text sees.
  REQUIRE_OK(
      ScoreText(*cut.scorer, absl::MakeConstSpan(whole.tokens).subspan(0, 5), {}, {}, &first));
  double expected = 0;
  for (int place = 1; place < 5; ++place) expected += whole.LossAt(place);
  CHECK(first.loss == Approx(expected).epsilon(1e-5));
  CHECK(windows.loss != Approx(first.loss));

  std::vector<uint8_t> counted(whole.length, 0);
  counted[2] = counted[6] = 1;
  TextScore two;
  REQUIRE_OK(ScoreText(*whole.scorer, whole.tokens, counted, {}, &two));
  CHECK(two.tokens == 2);
  CHECK(two.loss == Approx(whole.LossAt(2) + whole.LossAt(6)).epsilon(1e-5));
}

TEST_CASE("an ending is chosen by its loss, or by its loss a token") {
  const Tiny tiny("untied");
  const auto at = [&](int begin, int end) {
    return std::vector<int32_t>(tiny.tokens.begin() + begin, tiny.tokens.begin() + end);
  };
  // By sum the short ending has less loss than the long one that begins with it.
  Question question = {.context = at(0, 3), .endings = {at(3, 6), at(3, 4)}, .right = 1};
  const double longer = tiny.LossAt(3) + tiny.LossAt(4) + tiny.LossAt(5);
  const bool long_by_mean = longer / 3 < tiny.LossAt(3);
  auto score = ScoreChoices(*tiny.scorer, {question, question}, tiny.vocabulary);
  REQUIRE_OK(score.status());
  CHECK(score->questions == 2);
  CHECK(score->by_sum == 2);
  CHECK(score->by_mean == (long_by_mean ? 0 : 2));
  // Of endings of one token, each the first one behind the context, the likeliest is chosen.
  Question one_token = {.context = at(0, 3)};
  const float* const behind = &tiny.log_probabilities[size_t{2} * tiny.vocabulary];
  for (int token = 0; token < 8; ++token) {
    one_token.endings.push_back({token});
    if (behind[token] > behind[one_token.right]) one_token.right = token;
  }
  // An ending that is chosen because it comes first would pass.
  if (one_token.right == 0) std::swap(one_token.endings[0], one_token.endings[5]);
  if (one_token.right == 0) one_token.right = 5;
  score = ScoreChoices(*tiny.scorer, {one_token}, tiny.vocabulary);
  REQUIRE_OK(score.status());
  CHECK(score->by_sum == 1);
  CHECK(score->by_mean == 1);
  question.endings[0].resize(tiny.length);
  CHECK_STATUS(ScoreChoices(*tiny.scorer, {question}, tiny.vocabulary),
               absl::StatusCode::kInvalidArgument, "more than the window of");
  question.endings[0] = {tiny.vocabulary};
  CHECK_STATUS(ScoreChoices(*tiny.scorer, {question}, tiny.vocabulary),
               absl::StatusCode::kInvalidArgument, "the file is of another tokenizer");
}

TEST_CASE("a model whose losses are no numbers chooses no ending, and has no perplexity") {
  const Tiny broken("untied", 0, /*is_broken=*/true);
  const Question question = {.context = {1, 2}, .endings = {{0}, {3}}, .right = 0};
  CHECK_STATUS(ScoreChoices(*broken.scorer, {question}, broken.vocabulary),
               absl::StatusCode::kDataLoss, "question 0: the loss of ending 0 is nan");
  TextScore score;
  CHECK_STATUS(ScoreText(*broken.scorer, broken.tokens, {}, {}, &score),
               absl::StatusCode::kDataLoss, "behind 0 tokens the loss is nan: the model's weights");
}

// A file as llm.c writes it.
std::string ChoiceFile(const std::vector<uint16_t>& numbers, int32_t questions) {
  int32_t header[256] = {20240522, 1, questions, 100};
  std::string bytes(sizeof(header) + numbers.size() * sizeof(uint16_t), '\0');
  std::memcpy(bytes.data(), header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), numbers.data(), numbers.size() * sizeof(uint16_t));
  return bytes;
}

TEST_CASE("llm.c's questions are read, and a file that is cut or damaged is refused") {
  const std::vector<uint16_t> one = {65535, 26, 0, 1, 2, 3, 7, 8, 9, 1, 5, 2, 6, 4};
  const auto questions = ParseChoices(ChoiceFile(one, 1));
  REQUIRE_OK(questions.status());
  REQUIRE(questions->size() == 1);
  CHECK(questions->front().context == std::vector<int32_t>{7, 8, 9});
  CHECK(questions->front().endings == std::vector<std::vector<int32_t>>{{5}, {6, 4}});
  CHECK(questions->front().right == 1);
  const std::string whole = ChoiceFile(one, 1);
  for (size_t size = 0; size < whole.size() - 1; ++size) {
    INFO(size);
    CHECK_FALSE(ParseChoices(absl::string_view(whole).substr(0, size)).ok());
  }
  CHECK_STATUS(ParseChoices(ChoiceFile(one, 2)), absl::StatusCode::kInvalidArgument,
               "question 1 of 2 is damaged");
  std::vector<uint16_t> more = one;
  more.push_back(0);
  CHECK_STATUS(ParseChoices(ChoiceFile(more, 1)), absl::StatusCode::kInvalidArgument,
               "it goes on behind the 1 questions");
  for (const size_t place : {0, 2, 3, 4, 5, 9}) {  // the mark, the number, the right one, counts
    std::vector<uint16_t> wrong = one;
    wrong[place] = 300;
    CHECK_FALSE(ParseChoices(ChoiceFile(wrong, 1)).ok());
  }
  CHECK_STATUS(ParseChoices(std::string(2000, 'x')), absl::StatusCode::kInvalidArgument,
               "no file of llm.c's questions");
}

TEST_CASE("a window that the model's positions do not reach is refused") {
  const Golden golden("gpt2");
  const auto device = Device::Cpu();
  const CommunicatorSet communicators = SoloCommunicators();
  const auto weights = golden.Weights();
  const auto source = testing::WeightsSource(golden.Model(), [&](const ParameterSlice& slice) {
    return testing::BoxOf(weights.at(slice.name), slice);
  });
  for (const int window : {0, golden.Model().positions + 1}) {
    CHECK_STATUS(
        Scorer::Make({.config = golden.Model(), .window = window}, source, communicators, *device),
        absl::StatusCode::kInvalidArgument, "tokens cannot be scored");
  }
}

}  // namespace
}  // namespace convene::worker
