#include "worker_runtime/inference/evaluation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// The sum over the ending's tokens.
absl::StatusOr<double> LossOf(Scorer& scorer, const std::vector<int32_t>& context,
                              const std::vector<int32_t>& ending) {
  std::vector<int32_t> tokens = context;
  tokens.insert(tokens.end(), ending.begin(), ending.end());
  std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
  std::fill_n(targets.begin(), context.size() - 1, -1);
  tokens.pop_back();
  return scorer.Loss(tokens, targets);
}

absl::Status CheckLoss(double loss, absl::string_view what) {
  if (std::isfinite(loss)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      what, " is ", loss,
      ": the model's weights may be damaged, or too large for the type of its arithmetic "
      "(--precision fp32)"));
}

absl::Status CheckQuestion(const Question& question, size_t number, int window, int vocabulary) {
  size_t longest = 0;
  int32_t largest = *std::max_element(question.context.begin(), question.context.end());
  for (const std::vector<int32_t>& ending : question.endings) {
    longest = std::max(longest, ending.size());
    largest = std::max(largest, *std::max_element(ending.begin(), ending.end()));
  }
  longest += question.context.size() - 1;
  if (longest > static_cast<size_t>(window)) {
    return absl::InvalidArgumentError(absl::StrCat("question ", number, " takes ", longest,
                                                   " tokens, more than the window of ", window,
                                                   ": give a longer one (--context)"));
  }
  if (largest < vocabulary) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("question ", number, " has the token ", largest,
                                                 ", and the model has ", vocabulary,
                                                 " tokens: the file is of another tokenizer"));
}

}  // namespace

double TextScore::perplexity() const { return std::exp(mean()); }

double TextScore::bits_per_byte() const {
  return bytes > 0 ? loss / (static_cast<double>(bytes) * std::log(2.0)) : 0;
}

absl::Status ScoreText(Scorer& scorer, absl::Span<const int32_t> tokens,
                       absl::Span<const uint8_t> counted, absl::Span<const uint16_t> token_bytes,
                       TextScore* score) {
  const auto window = static_cast<size_t>(scorer.window());
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += window) {
    const size_t count = std::min(window, tokens.size() - 1 - begin);
    const absl::Span<const int32_t> next = tokens.subspan(begin + 1, count);
    std::vector<int32_t> targets(next.begin(), next.end());
    for (size_t i = 0; i < count && !counted.empty(); ++i) {
      if (counted[begin + 1 + i] == 0) targets[i] = -1;
    }
    CONVENE_ASSIGN_OR_RETURN(const double loss, scorer.Loss(tokens.subspan(begin, count), targets));
    CONVENE_RETURN_IF_ERROR(
        CheckLoss(loss, absl::StrCat("behind ", score->tokens, " tokens the loss")));
    score->loss += loss;
    for (const int32_t target : targets) {
      if (target < 0) continue;
      ++score->tokens;
      if (static_cast<size_t>(target) < token_bytes.size()) score->bytes += token_bytes[target];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ChoiceScore> ScoreChoices(Scorer& scorer, absl::Span<const Question> questions,
                                         int vocabulary_size) {
  for (size_t i = 0; i < questions.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(CheckQuestion(questions[i], i, scorer.window(), vocabulary_size));
  }
  ChoiceScore score;
  for (const Question& question : questions) {
    double least = std::numeric_limits<double>::infinity(), least_mean = least;
    int by_sum = 0, by_mean = 0;
    for (size_t i = 0; i < question.endings.size(); ++i) {
      CONVENE_ASSIGN_OR_RETURN(const double loss,
                               LossOf(scorer, question.context, question.endings[i]));
      CONVENE_RETURN_IF_ERROR(
          CheckLoss(loss, absl::StrCat("question ", score.questions, ": the loss of ending ", i)));
      const double mean = loss / static_cast<double>(question.endings[i].size());
      if (loss < least) by_sum = static_cast<int>(i);
      if (mean < least_mean) by_mean = static_cast<int>(i);
      least = std::min(least, loss);
      least_mean = std::min(least_mean, mean);
    }
    score.by_sum += by_sum == question.right ? 1 : 0;
    score.by_mean += by_mean == question.right ? 1 : 0;
    ++score.questions;
  }
  return score;
}

}  // namespace convene::worker
