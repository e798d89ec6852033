#include "worker_runtime/inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker_runtime/ops/philox.h"

namespace convene::worker {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
// A score divided by less may be infinite; long before that the likeliest token is certain.
constexpr double kLeastTemperature = 1e-30;

// Once for each token that the sequence has, however often.
void PenalizeRepetition(absl::Span<const int32_t> tokens, float penalty, absl::Span<float> scores) {
  std::vector<bool> is_done(scores.size());
  for (const int32_t token : tokens) {
    if (is_done[token]) continue;
    is_done[token] = true;
    float& score = scores[token];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

void KeepTopK(size_t k, absl::Span<float> scores) {
  if (k >= scores.size()) return;
  std::vector<float> sorted(scores.begin(), scores.end());
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  const float least = sorted[k - 1];
  for (float& score : scores) {
    if (score < least) score = kNever;
  }
}

// Up to a factor, the probabilities of the scores: the largest is 1.
std::vector<double> Weights(absl::Span<const float> scores) {
  const float largest = *std::max_element(scores.begin(), scores.end());
  std::vector<double> weights(scores.size());
  std::transform(scores.begin(), scores.end(), weights.begin(),
                 [&](float score) { return std::exp(double{score} - largest); });
  return weights;
}

// From the least likely token on, those go whose probabilities together are at most 1 - p; of equal
// ones the later goes first. The last one stays.
void KeepTopP(double p, absl::Span<float> scores) {
  const std::vector<double> weights = Weights(scores);
  std::vector<int32_t> order;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) order.push_back(static_cast<int32_t>(i));
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] < weights[b] : a > b;
  });
  const double most = (1 - p) * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    sum += weights[order[i]];
    if (sum > most) return;
    scores[order[i]] = kNever;
  }
}

void KeepMinP(double p, absl::Span<float> scores) {
  const std::vector<double> weights = Weights(scores);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < p) scores[i] = kNever;
  }
}

}  // namespace

absl::Status ValidateSampling(const SamplingOptions& options) {
  const auto refuse = [](const char* flag, double value, const char* range) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is ", value, ", but must be ", range));
  };
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return refuse("temperature", options.temperature, "0 (the likeliest token) or more");
  }
  if (!(options.repetition_penalty > 0) || std::isinf(options.repetition_penalty)) {
    return refuse("repetition-penalty", options.repetition_penalty, "above 0 (1: no penalty)");
  }
  if (options.top_k < 0) return refuse("top-k", options.top_k, "0 (all tokens) or more");
  if (!(options.top_p >= 0 && options.top_p <= 1)) {
    return refuse("top-p", options.top_p, "from 0 (the likeliest token) to 1 (all tokens)");
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return refuse("min-p", options.min_p, "from 0 (all tokens) to 1");
  }
  return absl::OkStatus();
}

double SamplingNumber(uint64_t seed, uint64_t sequence, uint64_t place) {
  const PhiloxCounter random =
      Philox({{static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32),
               static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32)}},
             seed);
  return OpenUnit(random[0], random[1]);
}

std::vector<LogProbability> LogProbabilities(absl::Span<const float> logits, int32_t token,
                                             int top) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - largest);
  const double shift = largest + std::log(sum);
  std::vector<LogProbability> result = {{token, logits[token] - shift}};
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<std::ptrdiff_t>(top, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (auto it = order.begin(); it != end; ++it) result.push_back({*it, logits[*it] - shift});
  return result;
}

int32_t Sample(const SamplingOptions& options, absl::Span<const int32_t> tokens, double number,
               absl::Span<float> logits) {
  if (options.repetition_penalty != 1) {
    PenalizeRepetition(tokens, static_cast<float>(options.repetition_penalty), logits);
  }
  if (options.temperature < kLeastTemperature) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  for (float& logit : logits) logit /= static_cast<float>(options.temperature);
  if (options.top_k > 0) KeepTopK(options.top_k, logits);
  if (options.top_p < 1) KeepTopP(options.top_p, logits);
  if (options.min_p > 0) KeepMinP(options.min_p, logits);
  const std::vector<double> weights = Weights(logits);
  double left = number * std::accumulate(weights.begin(), weights.end(), 0.0);
  int32_t chosen = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    chosen = static_cast<int32_t>(i);
    left -= weights[i];
    if (left < 0) break;
  }
  return chosen;
}

}  // namespace convene::worker
