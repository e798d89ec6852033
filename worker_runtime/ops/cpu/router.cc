#include "worker_runtime/ops/router.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/base/check.h"
#include "worker_runtime/ops/choice_key.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/softmax.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/targets.h"

namespace convene::worker::cpu {
namespace {

// Of a row of `experts` logits (one core of an AMD EPYC, 8 to 256 experts).
constexpr double ForwardNanoseconds(int experts) { return 100 + 3.5 * experts; }
constexpr double StatisticsNanoseconds(int experts) { return 120 + 0.6 * experts; }
constexpr double BackwardNanoseconds(int experts) { return 190 + experts; }

CONVENE_CPU_CLONES float Sigmoids(int count, const float* x, float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) {
    y[i] = Sigmoid(x[i]);
    sum += y[i];
  }
  return sum;
}

CONVENE_CPU_CLONES void Multiply(int count, float factor, float* x) {
#pragma omp simd
  for (int i = 0; i < count; ++i) x[i] *= factor;
}

CONVENE_CPU_CLONES void AddScaled(int count, float factor, const float* x, float* sums) {
#pragma omp simd
  for (int i = 0; i < count; ++i) sums[i] += factor * x[i];
}

CONVENE_CPU_CLONES float Dot(int count, const float* x, const float* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

CONVENE_CPU_CLONES uint64_t Largest(int count, const uint64_t* keys) {
  uint64_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int i = 0; i < count; ++i) largest = keys[i] > largest ? keys[i] : largest;
  return largest;
}

// The scores of a row; returns their sum, which is NaN where a logit is.
float Scores(const RouterShape& shape, const float* logits, float* scores) {
  if (shape.score == RouterScore::kSigmoid) return Sigmoids(shape.experts, logits, scores);
  std::copy_n(logits, shape.experts, scores);
  const float sum = ExpInPlace(shape.experts, Max(shape.experts, logits), scores);
  Multiply(shape.experts, 1.0f / sum, scores);
  return sum / sum;
}

float LogSumExp(int count, const float* x) {
  const float largest = Max(count, x);
  return largest + std::log(ExpSum(count, largest, x));
}

// The keys of experts outside of the chosen groups become 0. `ranks`: score + bias.
void DropGroups(const RouterShape& shape, const float* ranks, uint64_t* keys) {
  const int size = shape.experts / shape.groups;
  uint64_t group_keys[kRouterExpertsMax];
  for (int group = 0; group < shape.groups; ++group) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (int i = group * size; i < (group + 1) * size; ++i) {
      second = std::max(second, std::min(first, ranks[i]));
      first = std::max(first, ranks[i]);
    }
    const bool adds = size > 1 && !shape.judges_by_best;
    group_keys[group] = ChoiceKey(adds ? first + second : first, group);
  }
  for (int group = 0; group < shape.groups; ++group) {
    const auto above = std::count_if(group_keys, group_keys + shape.groups,
                                     [&](uint64_t key) { return key > group_keys[group]; });
    if (above >= shape.chosen_groups) std::fill_n(keys + group * size, size, 0);
  }
}

void Choose(const RouterShape& shape, const float* logits, const float* scores, const float* bias,
            int32_t* experts) {
  const float* ranks = logits;
  float biased[kRouterExpertsMax];
  if (bias != nullptr || shape.groups > 1) {
    for (int i = 0; i < shape.experts; ++i) biased[i] = scores[i] + (bias != nullptr ? bias[i] : 0);
    ranks = biased;
  }
  uint64_t keys[kRouterExpertsMax];
  for (int i = 0; i < shape.experts; ++i) keys[i] = ChoiceKey(ranks[i], i);
  if (shape.groups > 1) DropGroups(shape, ranks, keys);
  for (int j = 0; j < shape.chosen; ++j) {
    experts[j] = ChosenNumber(Largest(shape.experts, keys));
    keys[experts[j]] = 0;
  }
}

// The factor of the scores of a token's experts in their weights, but for shape.scale.
float Normalizer(const RouterShape& shape, const float* scores, const int32_t* experts) {
  if (!shape.normalizes) return 1;
  float sum = shape.score == RouterScore::kSigmoid ? kRouterEpsilon : 0;
  for (int j = 0; j < shape.chosen; ++j) sum += scores[experts[j]];
  return 1 / sum;
}

// The gradient of the scores through the weights, added to `slopes`.
void AddWeightSlopes(const RouterShape& shape, const float* scores, const int32_t* experts,
                     const float* dweights, float* slopes) {
  const float normalizer = Normalizer(shape, scores, experts);
  float mean = 0;  // of dweights, by the weights
  for (int j = 0; shape.normalizes && j < shape.chosen; ++j) {
    mean += dweights[j] * scores[experts[j]] * normalizer;
  }
  const float factor = shape.scale * normalizer;
  for (int j = 0; j < shape.chosen; ++j) slopes[experts[j]] += factor * (dweights[j] - mean);
}

template <typename T>
CONVENE_CPU_CLONES void StoreGradient(int count, bool is_softmax, const float* scores,
                                      const float* slopes, float mean, float z_slope,
                                      const float* logits, float log_sum_exp, T* dlogits) {
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    const float score = scores[i];
    const float slope = is_softmax ? slopes[i] - mean : (1.0f - score) * slopes[i];
    Narrow(score * slope + z_slope * Exp(logits[i] - log_sum_exp), &dlogits[i]);
  }
}

}  // namespace

void RouterForward(const RouterShape& shape, const float* logits, const float* bias,
                   const int32_t* targets, int32_t* experts, float* weights, Stream& /*stream*/) {
  CONVENE_CHECK(shape.experts <= kRouterExpertsMax);
  ForPieces(ForwardNanoseconds(shape.experts) * shape.rows, shape.rows, [=](int64_t row) {
    const float* const row_logits = logits + row * shape.experts;
    int32_t* const row_experts = experts + row * shape.chosen;
    if (targets != nullptr && targets[row] == kPaddingTarget) {
      std::fill_n(row_experts, shape.chosen, -1);
      std::fill_n(weights + row * shape.chosen, shape.chosen, 0.0f);
      return;
    }
    float scores[kRouterExpertsMax];
    const float sum = Scores(shape, row_logits, scores);
    Choose(shape, row_logits, scores, bias, row_experts);
    const float factor = shape.scale * Normalizer(shape, scores, row_experts);
    for (int j = 0; j < shape.chosen; ++j) {
      weights[row * shape.chosen + j] = std::isnan(sum) ? sum : factor * scores[row_experts[j]];
    }
  });
}

void RouterStatistics(const RouterShape& shape, int rows_per_sequence, const float* logits,
                      const int32_t* experts, const int32_t* targets, float* statistics,
                      Stream& /*stream*/) {
  const int count = shape.experts;
  ForPieces(StatisticsNanoseconds(count) * shape.rows, shape.rows / rows_per_sequence,
            [=](int64_t sequence) {
              float* const counts = statistics + sequence * RouterStatisticsWidth(count);
              float* const shares = counts + count;
              float* const squares = shares + count;
              std::fill_n(counts, RouterStatisticsWidth(count), 0.0f);
              for (int64_t row = sequence * rows_per_sequence;
                   row < (sequence + 1) * rows_per_sequence; ++row) {
                if (targets != nullptr && targets[row] < 0) continue;
                float scores[kRouterExpertsMax];
                const float sum = Scores(shape, logits + row * count, scores);
                AddScaled(count, 1.0f / sum, scores, shares);
                for (int j = 0; j < shape.chosen; ++j) ++counts[experts[row * shape.chosen + j]];
                const float log_sum_exp = LogSumExp(count, logits + row * count);
                *squares += log_sum_exp * log_sum_exp;
              }
            });
}

// One thread: a few thousand numbers.
void RouterPenalty(int sequences, const RouterShape& shape, float balance_coefficient,
                   float z_coefficient, const float* gradient_scale, const float* statistics,
                   float* balance, double* losses, Stream& /*stream*/) {
  double balance_loss = 0;
  double squares = 0;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const float* const counts = statistics + sequence * RouterStatisticsWidth(shape.experts);
    const float* const shares = counts + shape.experts;
    float choices = 0;
    for (int i = 0; i < shape.experts; ++i) choices += counts[i];
    const float factor = choices > 0 ? balance_coefficient * *gradient_scale *
                                           static_cast<float>(shape.experts) / choices
                                     : 0.0f;
    for (int i = 0; i < shape.experts; ++i) {
      const float slope = factor * counts[i];
      balance[sequence * shape.experts + i] = slope;
      balance_loss += static_cast<double>(slope) * shares[i];
    }
    squares += counts[2 * shape.experts];
  }
  if (losses == nullptr) return;
  losses[0] += balance_loss;
  losses[1] += static_cast<double>(z_coefficient) * *gradient_scale * squares;
}

template <typename T>
void RouterBackward(const RouterShape& shape, int rows_per_sequence, const float* logits,
                    const int32_t* experts, const float* dweights, const float* balance,
                    float z_coefficient, const float* gradient_scale, const int32_t* targets,
                    T* dlogits, Stream& /*stream*/) {
  const int count = shape.experts;
  const bool is_softmax = shape.score == RouterScore::kSoftmax;
  const float z_factor = z_coefficient == 0 ? 0 : 2 * z_coefficient * *gradient_scale;
  ForPieces(BackwardNanoseconds(count) * shape.rows, shape.rows, [=](int64_t row) {
    const float* const row_logits = logits + row * count;
    if (experts[row * shape.chosen] < 0) {
      std::fill_n(dlogits + row * count, count, T(0.0f));
      return;
    }
    const bool counts = targets == nullptr || targets[row] >= 0;
    float scores[kRouterExpertsMax];
    float slopes[kRouterExpertsMax] = {};
    const float sum = Scores(shape, row_logits, scores);
    if (counts && balance != nullptr) {
      const float* const of_shares = balance + row / rows_per_sequence * count;
      // Of softmax a score is a share. Else a share is score / sum.
      const float mean = is_softmax ? 0 : Dot(count, of_shares, scores) / sum;
      for (int i = 0; i < count; ++i) slopes[i] = (of_shares[i] - mean) / sum;
    }
    AddWeightSlopes(shape, scores, experts + row * shape.chosen, dweights + row * shape.chosen,
                    slopes);
    const float log_sum_exp = LogSumExp(count, row_logits);
    StoreGradient(count, is_softmax, scores, slopes, is_softmax ? Dot(count, scores, slopes) : 0,
                  counts ? z_factor * log_sum_exp : 0, row_logits, log_sum_exp,
                  dlogits + row * count);
  });
}

CONVENE_INSTANTIATE(RouterBackward);

}  // namespace convene::worker::cpu
