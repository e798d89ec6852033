// The router of a mixture of experts (Shazeer et al. 2017): which experts a token goes to, with
// which weights, and the two losses that keep experts evenly used and logits small. Logits are
// float: (rows, experts).
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/kinds.h"

namespace convene::worker {

// In the sum by which weights of sigmoid scores are divided.
inline constexpr float kRouterEpsilon = 1e-20f;

// REQUIRES: 0 < chosen <= experts of chosen_groups groups; experts <= kRouterExpertsMax; groups are
// equal.
struct RouterShape {
  int rows = 0;
  int experts = 0;
  int chosen = 0;  // experts that a token goes to ("top k")
  RouterScore score = RouterScore::kSoftmax;
  // The weights of a token are divided by their sum (sigmoid: plus kRouterEpsilon, as DeepSeek-V3
  // does).
  bool normalizes = true;
  float scale = 1;  // of the weights, at the end
  // Neighbouring experts form equal groups. A token's experts come from its chosen groups: those
  // with the largest sums of their two largest (score + bias) (DeepSeek-V3, section 2.1.2), or with
  // `judges_by_best` those with the largest (DeepSeek-V2, section 2.1.2: by devices).
  int groups = 1;
  int chosen_groups = 1;
  bool judges_by_best = false;
};

// experts: (rows, chosen), by falling (score + bias), of equal ones the lower number first; groups
// likewise. bias: (experts), or null: none. Then, and without groups, logits stand for scores:
// these rise with those, and cannot round to equal numbers. weights: (rows, chosen), of the scores
// without bias. A row with a NaN among its logits has NaN for weights, and still distinct experts.
// A row of padding goes to no expert: all its experts are -1, and its weights 0. targets: (rows),
// kPaddingTarget in padding (ops/targets.h); null: there is none.
void RouterForward(const RouterShape& shape, const float* logits, const float* bias,
                   const int32_t* targets, int32_t* experts, float* weights, Stream& stream);

// Numbers that RouterStatistics leaves for a sequence: of each expert the count and the share, and
// one more.
constexpr int RouterStatisticsWidth(int experts) { return 2 * experts + 1; }

// statistics: (sequences, RouterStatisticsWidth), overwritten. Of a sequence's rows that count
// (targets: (rows), at least 0 there; null: all rows): how many chose each expert; the sum of each
// expert's share, which is its score over the sum of the row's scores; the sum of the squares of
// the log-sum-exp of logits. rows = sequences * rows_per_sequence. Sums have a fixed order: the
// same bits for the same input.
void RouterStatistics(const RouterShape& shape, int rows_per_sequence, const float* logits,
                      const int32_t* experts, const int32_t* targets, float* statistics,
                      Stream& stream);

// From statistics, summed over the ranks that share the sequences. With S, the rows of a sequence
// that count (its counts' sum / chosen), and g = *gradient_scale (in the device's memory):
//
//   balance: (sequences, experts) = balance_coefficient g experts / (chosen S) count, or 0 where S
//   is 0: the gradient of each counted row's share.
//   losses[0] += the sum of balance * the sum of shares: the loss of Switch Transformers (Fedus et
//   al. 2021, equations 4 to 6) taken in each sequence (DeepSeek-V3, equations 17 to 20), and
//   weighted by the sequence's rows.
//   losses[1] += z_coefficient g the sum of squared log-sum-exp (ST-MoE, Zoph et al. 2022, eq. 5).
//
// losses: 2 doubles, or null (another rank counts them).
void RouterPenalty(int sequences, const RouterShape& shape, float balance_coefficient,
                   float z_coefficient, const float* gradient_scale, const float* statistics,
                   float* balance, double* losses, Stream& stream);

// dlogits: (rows, experts), overwritten: the gradient through the weights (dweights: (rows,
// chosen)), and of rows that count also through the shares, by balance[row / rows_per_sequence]
// (null: none), and through the log-sum-exp, by 2 z_coefficient *gradient_scale log-sum-exp. The
// choice of experts has no gradient. Zeros in a row that goes to no expert. T: float or BFloat16.
template <typename T>
void RouterBackward(const RouterShape& shape, int rows_per_sequence, const float* logits,
                    const int32_t* experts, const float* dweights, const float* balance,
                    float z_coefficient, const float* gradient_scale, const int32_t* targets,
                    T* dlogits, Stream& stream);

}  // namespace convene::worker
