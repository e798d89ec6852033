#include "worker_runtime/inference/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

using Numbers = std::vector<double>;

// The probabilities of the tokens by the words of transformers' documentation, without its code:
// slow and plain.
Numbers Reference(const SamplingOptions& options, const std::vector<int32_t>& tokens,
                  const std::vector<float>& logits) {
  const size_t count = logits.size();
  Numbers scores(logits.begin(), logits.end());
  for (size_t i = 0; i < count; ++i) {
    if (std::find(tokens.begin(), tokens.end(), i) == tokens.end()) continue;
    scores[i] = scores[i] < 0 ? scores[i] * options.repetition_penalty
                              : scores[i] / options.repetition_penalty;
  }
  for (double& score : scores) score /= options.temperature;
  std::vector<bool> is_in(count, true);
  const auto probabilities = [&] {
    Numbers result(count);
    for (size_t i = 0; i < count; ++i) result[i] = is_in[i] ? std::exp(scores[i]) : 0;
    const double sum = std::accumulate(result.begin(), result.end(), 0.0);
    for (double& p : result) p /= sum;
    return result;
  };
  if (options.top_k > 0) {
    for (size_t i = 0; i < count; ++i) {
      const auto larger =
          std::count_if(scores.begin(), scores.end(), [&](double s) { return s > scores[i]; });
      if (larger >= options.top_k) is_in[i] = false;
    }
  }
  if (options.top_p < 1) {
    // A token stays if those that are likelier do not add up to top_p yet.
    const Numbers p = probabilities();
    for (size_t i = 0; i < count; ++i) {
      double likelier = 0;
      for (size_t j = 0; j < count; ++j) {
        if (p[j] > p[i]) likelier += p[j];
      }
      if (likelier >= options.top_p) is_in[i] = false;
    }
  }
  const Numbers p = probabilities();
  const double largest = *std::max_element(p.begin(), p.end());
  for (size_t i = 0; i < count; ++i) {
    if (p[i] < options.min_p * largest) is_in[i] = false;
  }
  return probabilities();
}

// How much of [0, 1] leads to each token.
Numbers Shares(const SamplingOptions& options, const std::vector<int32_t>& tokens,
               const std::vector<float>& logits) {
  constexpr int kNumbers = 2000;
  Numbers shares(logits.size());
  for (int i = 0; i < kNumbers; ++i) {
    std::vector<float> changed = logits;
    shares[Sample(options, tokens, (i + 0.5) / kNumbers, absl::MakeSpan(changed))] +=
        1.0 / kNumbers;
  }
  return shares;
}

std::vector<float> SomeLogits(int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(23);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST_CASE("Log-probabilities are those of the softmax, of the token and of the likeliest") {
  const std::vector<float> logits = {0, std::log(4.0f), std::log(2.0f), 0};
  const std::vector<LogProbability> all = LogProbabilities(logits, 3, 9);
  const std::vector<std::pair<int32_t, double>> expected = {{3, 8}, {1, 2}, {2, 4}, {0, 8}, {3, 8}};
  REQUIRE(all.size() == expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].token == expected[i].first);
    CHECK(all[i].value == Approx(-std::log(expected[i].second)).margin(1e-6));
  }
  CHECK(LogProbabilities(logits, 1, 0).size() == 1);
  const std::vector<float> large = {1000, 1000};
  CHECK(LogProbabilities(large, 0, 0)[0].value == Approx(-std::log(2.0)));
}

TEST_CASE("Tokens are chosen with the probabilities of the reference") {
  const std::vector<int32_t> tokens = {3, 7, 7, 20, 0, 11};
  int seed = 0;
  for (const double temperature : {0.7, 1.0, 1.6}) {
    for (const double penalty : {1.0, 1.4, 0.8}) {
      for (const int top_k : {0, 1, 6, 23, 50}) {
        for (const double top_p : {1.0, 0.9, 0.4, 0.01}) {
          for (const double min_p : {0.0, 0.1}) {
            const SamplingOptions options = {.temperature = temperature,
                                             .repetition_penalty = penalty,
                                             .top_k = top_k,
                                             .top_p = top_p,
                                             .min_p = min_p};
            REQUIRE_OK(ValidateSampling(options));
            const std::vector<float> logits = SomeLogits(++seed);
            const Numbers expected = Reference(options, tokens, logits);
            const Numbers shares = Shares(options, tokens, logits);
            double distance = 0;
            for (size_t i = 0; i < shares.size(); ++i) {
              distance = std::max(distance, std::abs(shares[i] - expected[i]));
              if (expected[i] == 0) CHECK(shares[i] == 0);
            }
            CHECK(distance < 1e-3);
          }
        }
      }
    }
  }
}

TEST_CASE("Without temperature the first of the largest scores is taken, with the penalty") {
  std::vector<float> logits = {1, 3, -2, 3, 2};
  CHECK(Sample({}, {}, 0.9, absl::MakeSpan(logits)) == 1);
  logits = {1, 3, -2, 3, 2};
  CHECK(Sample({.repetition_penalty = 2}, {{1, 1}}, 0.9, absl::MakeSpan(logits)) == 3);
  logits = {1, 3, -2, 3, 2};
  CHECK(Sample({.repetition_penalty = 2}, {{1, 3}}, 0.9, absl::MakeSpan(logits)) == 4);
  logits = {-1, -3, -2};
  CHECK(Sample({.repetition_penalty = 2.5}, std::vector<int32_t>{0}, 0.9, absl::MakeSpan(logits)) ==
        2);
}

TEST_CASE("A temperature that no score can be divided by is none") {
  for (const double temperature : {1e-29, 1e-31, 1e-40, 1e-320}) {
    REQUIRE_OK(ValidateSampling({.temperature = temperature}));
    std::vector<float> logits = {50, -30, 80, 70};
    CHECK(Sample({.temperature = temperature}, {}, 0.001, absl::MakeSpan(logits)) == 2);
  }
}

TEST_CASE("Equals of the k-th largest stay, and a token stays under each limit") {
  std::vector<float> logits = {5, 5, 5, 1};
  const Numbers shares = Shares({.temperature = 1, .top_k = 2}, {}, logits);
  CHECK(std::abs(shares[2] - 1.0 / 3) < 1e-3);
  CHECK(shares[3] == 0);
  logits = {0, 1, 50};
  CHECK(Shares({.temperature = 1, .top_p = 1e-9, .min_p = 1}, {}, logits)[2] > 0.999);
  REQUIRE_OK(ValidateSampling({.top_p = 0}));
  CHECK(Shares({.temperature = 1, .top_p = 0}, {}, logits)[2] > 0.999);
}

TEST_CASE("The number of a token is a function of its place, its sequence and the seed") {
  const double number = SamplingNumber(1, 2, 3);
  CHECK(number == SamplingNumber(1, 2, 3));
  CHECK(number != SamplingNumber(2, 2, 3));
  CHECK(number != SamplingNumber(1, 3, 3));
  CHECK(number != SamplingNumber(1, 2, 4));
  CHECK(number != SamplingNumber(1, 3, 2));
  double sum = 0;
  for (int i = 0; i < 10000; ++i) sum += SamplingNumber(5, i / 100, i % 100);
  CHECK(std::abs(sum / 10000 - 0.5) < 0.02);
}

TEST_CASE("Options that make no sense are refused by their flag") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const SamplingOptions& options, const char* flag) {
    CHECK_STATUS(ValidateSampling(options), absl::StatusCode::kInvalidArgument, flag);
  };
  refused({.temperature = -1}, "--temperature is -1, but must be 0");
  refused({.temperature = nan}, "--temperature");
  refused({.repetition_penalty = 0}, "--repetition-penalty");
  refused({.top_k = -1}, "--top-k");
  refused({.top_p = -0.1}, "--top-p");
  refused({.top_p = 1.1}, "--top-p");
  refused({.min_p = nan}, "--min-p");
  CHECK_OK(ValidateSampling({}));
}

}  // namespace
}  // namespace convene::worker
