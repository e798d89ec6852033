// A plain router; the contract is ops/router.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "worker_runtime/ops/router.h"
#include "worker_runtime/ops/targets.h"

namespace convene::worker::reference {

template <typename Real>
Real LogSumExp(int count, const Real* x) {
  const Real largest = *std::max_element(x, x + count);
  Real sum = 0;
  for (int i = 0; i < count; ++i) sum += std::exp(x[i] - largest);
  return largest + std::log(sum);
}

template <typename Real>
std::vector<Real> RouterScores(const RouterShape& shape, const Real* logits) {
  std::vector<Real> scores(logits, logits + shape.experts);
  const Real log_sum_exp = LogSumExp(shape.experts, logits);
  for (Real& score : scores) {
    score = shape.score == RouterScore::kSoftmax ? std::exp(score - log_sum_exp)
                                                 : Real{1} / (Real{1} + std::exp(-score));
  }
  return scores;
}

// The numbers of the `count` largest values; of equal ones the lower number first.
template <typename Real>
std::vector<int32_t> LargestOf(const std::vector<Real>& values, int count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

template <typename Real>
std::vector<int32_t> ChosenExperts(const RouterShape& shape, const std::vector<Real>& scores,
                                   const float* bias) {
  std::vector<Real> ranks = scores;
  for (int i = 0; bias != nullptr && i < shape.experts; ++i) ranks[i] += bias[i];
  const int size = shape.experts / shape.groups;
  std::vector<Real> sums;
  for (auto group = ranks.begin(); group != ranks.end(); group += size) {
    std::vector<Real> its(group, group + size);
    std::sort(its.rbegin(), its.rend());
    sums.push_back(its[0] + (size > 1 && !shape.judges_by_best ? its[1] : 0));
  }
  std::vector<Real> open(shape.experts, -INFINITY);
  for (const int group : LargestOf(sums, shape.chosen_groups)) {
    std::copy_n(ranks.begin() + group * size, size, open.begin() + group * size);
  }
  return LargestOf(open, shape.chosen);
}

template <typename Real>
Real WeightSum(const RouterShape& shape, const std::vector<Real>& scores, const int32_t* experts) {
  if (!shape.normalizes) return 1;
  Real sum = shape.score == RouterScore::kSigmoid ? Real{kRouterEpsilon} : 0;
  for (int j = 0; j < shape.chosen; ++j) sum += scores[experts[j]];
  return sum;
}

template <typename Real>
void RouterForward(const RouterShape& shape, const Real* logits, const float* bias,
                   const int32_t* targets, int32_t* experts, Real* weights) {
  for (ptrdiff_t row = 0; row < shape.rows; ++row) {
    if (targets != nullptr && targets[row] == kPaddingTarget) {
      std::fill_n(experts + row * shape.chosen, shape.chosen, -1);
      std::fill_n(weights + row * shape.chosen, shape.chosen, Real{0});
      continue;
    }
    const std::vector<Real> scores = RouterScores(shape, logits + row * shape.experts);
    const std::vector<int32_t> chosen = ChosenExperts(shape, scores, bias);
    std::copy(chosen.begin(), chosen.end(), experts + row * shape.chosen);
    for (int j = 0; j < shape.chosen; ++j) {
      weights[row * shape.chosen + j] =
          shape.scale * scores[chosen[j]] / WeightSum(shape, scores, chosen.data());
    }
  }
}

template <typename Real>
void RouterStatistics(const RouterShape& shape, int rows_per_sequence, const Real* logits,
                      const int32_t* experts, const int32_t* targets, Real* statistics) {
  const int width = RouterStatisticsWidth(shape.experts);
  std::fill_n(statistics, ptrdiff_t{shape.rows} / rows_per_sequence * width, Real{0});
  for (ptrdiff_t row = 0; row < shape.rows; ++row) {
    if (targets != nullptr && targets[row] < 0) continue;
    Real* const its = statistics + row / rows_per_sequence * width;
    const std::vector<Real> scores = RouterScores(shape, logits + row * shape.experts);
    const Real sum = std::accumulate(scores.begin(), scores.end(), Real{0});
    for (int j = 0; j < shape.chosen; ++j) its[experts[row * shape.chosen + j]] += 1;
    for (int i = 0; i < shape.experts; ++i) its[shape.experts + i] += scores[i] / sum;
    const Real log_sum_exp = LogSumExp(shape.experts, logits + row * shape.experts);
    its[width - 1] += log_sum_exp * log_sum_exp;
  }
}

template <typename Real>
void RouterPenalty(int sequences, const RouterShape& shape, float balance_coefficient,
                   float z_coefficient, float gradient_scale, const Real* statistics, Real* balance,
                   Real* losses) {
  const int width = RouterStatisticsWidth(shape.experts);
  for (ptrdiff_t sequence = 0; sequence < sequences; ++sequence) {
    const Real* const its = statistics + sequence * width;
    const Real rows = std::accumulate(its, its + shape.experts, Real{0}) / shape.chosen;
    for (int i = 0; i < shape.experts; ++i) {
      Real& slope = balance[sequence * shape.experts + i];
      slope = rows == 0 ? 0
                        : Real{balance_coefficient} * gradient_scale * shape.experts /
                              (shape.chosen * rows) * its[i];
      losses[0] += slope * its[shape.experts + i];
    }
    losses[1] += Real{z_coefficient} * gradient_scale * its[width - 1];
  }
}

// The derivative of a row's scores by logit `from`.
template <typename Real>
Real ScoreSlope(RouterScore kind, const std::vector<Real>& scores, int score, int from) {
  const Real itself = score == from ? scores[score] : 0;
  if (kind == RouterScore::kSigmoid) return itself * (1 - itself);
  return itself - scores[score] * scores[from];
}

// By the definition: each logit's slope of each score's slope of each result.
template <typename Real>
void RouterBackward(const RouterShape& shape, int rows_per_sequence, const Real* logits,
                    const int32_t* experts, const Real* dweights, const Real* balance,
                    float z_coefficient, float gradient_scale, const int32_t* targets,
                    Real* dlogits) {
  for (ptrdiff_t row = 0; row < shape.rows; ++row) {
    const Real* const its = logits + row * shape.experts;
    const int32_t* const chosen = experts + row * shape.chosen;
    if (chosen[0] < 0) {
      std::fill_n(dlogits + row * shape.experts, shape.experts, Real{0});
      continue;
    }
    const std::vector<Real> scores = RouterScores(shape, its);
    const bool counts = targets == nullptr || targets[row] >= 0;
    std::vector<Real> dscores(shape.experts);
    const Real total = std::accumulate(scores.begin(), scores.end(), Real{0});
    for (int i = 0; counts && balance != nullptr && i < shape.experts; ++i) {
      const Real slope = balance[row / rows_per_sequence * shape.experts + i];
      dscores[i] += slope / total;
      for (int l = 0; l < shape.experts; ++l) dscores[l] -= slope * scores[i] / (total * total);
    }
    const Real sum = WeightSum(shape, scores, chosen);
    for (int j = 0; j < shape.chosen; ++j) {
      const Real slope = shape.scale * dweights[row * shape.chosen + j];
      dscores[chosen[j]] += slope / sum;
      for (int l = 0; shape.normalizes && l < shape.chosen; ++l) {
        dscores[chosen[l]] -= slope * scores[chosen[j]] / (sum * sum);
      }
    }
    const Real log_sum_exp = LogSumExp(shape.experts, its);
    for (int i = 0; i < shape.experts; ++i) {
      Real slope = counts ? 2 * Real{z_coefficient} * gradient_scale * log_sum_exp *
                                std::exp(its[i] - log_sum_exp)
                          : 0;
      for (int l = 0; l < shape.experts; ++l) {
        slope += dscores[l] * ScoreSlope(shape.score, scores, l, i);
      }
      dlogits[row * shape.experts + i] = slope;
    }
  }
}

}  // namespace convene::worker::reference
