// A router of experts. A warp takes a row, and reads its few hundred logits as often as it needs
// them: they are in the cache.
#include <cmath>
#include <cstdint>

#include "tools/base/check.h"
#include "worker_runtime/ops/choice_key.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/targets.h"

namespace convene::worker::cuda {
namespace {

constexpr int kRows = 4;  // of a block

template <typename Value>
__device__ __forceinline__ Value WarpMax(Value value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Value other = __shfl_xor_sync(0xffffffffu, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// A row of logits, as all lanes of a warp see it.
struct Row {
  const float* logits;
  int experts;
  bool is_softmax;
  float log_sum_exp;  // NaN where a logit is

  __device__ __forceinline__ Row(const RouterShape& shape, const float* all, int64_t row)
      : logits(all + row * shape.experts),
        experts(shape.experts),
        is_softmax(shape.score == RouterScore::kSoftmax) {
    float largest = -INFINITY;
    for (int i = Lane(); i < experts; i += kWarp) largest = fmaxf(largest, logits[i]);
    largest = WarpMax(largest);
    log_sum_exp = largest + logf(Sum([&](int i) { return expf(logits[i] - largest); }));
  }

  __device__ __forceinline__ static int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ __forceinline__ float Softmax(int i) const { return expf(logits[i] - log_sum_exp); }
  __device__ __forceinline__ float Score(int i) const {
    return is_softmax ? Softmax(i) : 1.0f / (1.0f + expf(-logits[i]));
  }
  // Of value(i) over all experts.
  template <typename Value>
  __device__ __forceinline__ float Sum(const Value& value) const {
    float sum = 0;
    for (int i = Lane(); i < experts; i += kWarp) sum += value(i);
    return WarpSum(sum);
  }
};

// The factor of the scores of a token's experts in their weights, but for shape.scale.
__device__ __forceinline__ float Normalizer(const RouterShape& shape, const Row& row,
                                            const int32_t* experts) {
  if (!shape.normalizes) return 1;
  float sum = row.is_softmax ? 0 : kRouterEpsilon;
  for (int j = 0; j < shape.chosen; ++j) sum += row.Score(experts[j]);
  return 1 / sum;
}

// The keys of experts outside of the chosen groups become 0. rank(i): score + bias.
template <typename Rank>
__device__ __forceinline__ void DropGroups(const RouterShape& shape, const Rank& rank,
                                           uint64_t* group_keys, uint64_t* keys) {
  const int size = shape.experts / shape.groups;
  for (int group = Row::Lane(); group < shape.groups; group += kWarp) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (int i = group * size; i < (group + 1) * size; ++i) {
      second = fmaxf(second, fminf(first, rank(i)));
      first = fmaxf(first, rank(i));
    }
    const bool adds = size > 1 && !shape.judges_by_best;
    group_keys[group] = ChoiceKey(adds ? first + second : first, group);
  }
  __syncwarp();
  for (int i = Row::Lane(); i < shape.experts; i += kWarp) {
    int above = 0;
    for (int group = 0; group < shape.groups; ++group) {
      above += group_keys[group] > group_keys[i / size] ? 1 : 0;
    }
    if (above >= shape.chosen_groups) keys[i] = 0;
  }
}

__global__ void __launch_bounds__(kWarp* kRows)
    Forward(const RouterShape shape, const float* logits, const float* bias, const int32_t* targets,
            int32_t* experts, float* weights) {
  __shared__ uint64_t all_keys[kRows][kRouterExpertsMax];
  __shared__ uint64_t all_group_keys[kRows][kRouterExpertsMax];
  const int64_t number = int64_t{blockIdx.x} * kRows + threadIdx.y;
  if (number >= shape.rows) return;
  experts += number * shape.chosen;
  weights += number * shape.chosen;
  if (targets != nullptr && targets[number] == kPaddingTarget) {
    for (int j = Row::Lane(); j < shape.chosen; j += kWarp) {
      experts[j] = -1;
      weights[j] = 0;
    }
    return;
  }
  const Row row(shape, logits, number);
  uint64_t* const keys = all_keys[threadIdx.y];
  const bool by_score = bias != nullptr || shape.groups > 1;
  const auto rank = [&](int i) {
    return by_score ? row.Score(i) + (bias != nullptr ? bias[i] : 0.0f) : row.logits[i];
  };
  for (int i = Row::Lane(); i < shape.experts; i += kWarp) keys[i] = ChoiceKey(rank(i), i);
  if (shape.groups > 1) DropGroups(shape, rank, all_group_keys[threadIdx.y], keys);
  for (int j = 0; j < shape.chosen; ++j) {
    uint64_t largest = 0;
    // A lane reads and writes its own keys alone.
    for (int i = Row::Lane(); i < shape.experts; i += kWarp) {
      largest = keys[i] > largest ? keys[i] : largest;
    }
    const int expert = ChosenNumber(WarpMax(largest));
    if (expert % kWarp == Row::Lane()) keys[expert] = 0;
    if (Row::Lane() == 0) experts[j] = expert;
  }
  __syncwarp();
  const float factor = shape.scale * Normalizer(shape, row, experts);
  for (int j = Row::Lane(); j < shape.chosen; j += kWarp) {
    weights[j] = std::isnan(row.log_sum_exp) ? row.log_sum_exp : factor * row.Score(experts[j]);
  }
}

// A block takes a sequence: its warps every n-th row, each with sums of its own, which are then
// added in order.
__global__ void __launch_bounds__(kRouterStatisticsThreads, 1)
    Statistics(const RouterShape shape, int rows_per_sequence, const float* logits,
               const int32_t* experts, const int32_t* targets, float* statistics) {
  __shared__ float all_sums[kRouterStatisticsSums];
  __shared__ float squares[kWarp];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int width = 2 * shape.experts;
  float* const sums = all_sums + warp * width;
  for (int i = Row::Lane(); i < width; i += kWarp) sums[i] = 0;
  __syncwarp();
  float square = 0;
  for (int i = warp; i < rows_per_sequence; i += warps) {
    const int64_t number = int64_t{blockIdx.x} * rows_per_sequence + i;
    if (targets != nullptr && targets[number] < 0) continue;
    const Row row(shape, logits, number);
    const float sum = row.Sum([&](int l) { return row.Score(l); });
    for (int l = Row::Lane(); l < shape.experts; l += kWarp) {
      sums[shape.experts + l] += row.Score(l) / sum;
    }
    // The experts of a row are distinct.
    for (int j = Row::Lane(); j < shape.chosen; j += kWarp) {
      sums[experts[number * shape.chosen + j]] += 1;
    }
    __syncwarp();
    square += row.log_sum_exp * row.log_sum_exp;
  }
  if (Row::Lane() == 0) squares[warp] = square;
  __syncthreads();
  statistics += int64_t{blockIdx.x} * RouterStatisticsWidth(shape.experts);
  for (int i = static_cast<int>(threadIdx.x); i <= width; i += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += i < width ? all_sums[w * width + i] : squares[w];
    statistics[i] = sum;
  }
}

// One block; a warp takes every n-th sequence.
__global__ void __launch_bounds__(kSumThreads)
    Penalty(int sequences, const RouterShape shape, float balance_coefficient, float z_coefficient,
            const float* gradient_scale, const float* statistics, float* balance, double* losses) {
  __shared__ double of_balance[kWarp];
  __shared__ double of_squares[kWarp];
  double loss = 0;
  double squares = 0;
  for (int64_t sequence = threadIdx.x / kWarp; sequence < sequences;
       sequence += kSumThreads / kWarp) {
    const float* const counts = statistics + sequence * RouterStatisticsWidth(shape.experts);
    float choices = 0;
    for (int i = Row::Lane(); i < shape.experts; i += kWarp) choices += counts[i];
    choices = WarpSum(choices);
    const float factor = choices > 0 ? balance_coefficient * *gradient_scale *
                                           static_cast<float>(shape.experts) / choices
                                     : 0.0f;
    for (int i = Row::Lane(); i < shape.experts; i += kWarp) {
      const float slope = factor * counts[i];
      balance[sequence * shape.experts + i] = slope;
      loss += static_cast<double>(slope) * static_cast<double>(counts[shape.experts + i]);
    }
    if (Row::Lane() == 0) squares += static_cast<double>(counts[2 * shape.experts]);
  }
  loss = BlockSum(loss, of_balance);
  squares = BlockSum(squares, of_squares);
  if (losses == nullptr || threadIdx.x > 0) return;
  losses[0] += loss;
  losses[1] += static_cast<double>(z_coefficient) * static_cast<double>(*gradient_scale) * squares;
}

template <typename T>
__global__ void __launch_bounds__(kWarp* kRows)
    Backward(const RouterShape shape, int rows_per_sequence, const float* logits,
             const int32_t* experts, const float* dweights, const float* balance,
             float z_coefficient, const float* gradient_scale, const int32_t* targets, T* dlogits) {
  __shared__ float all_slopes[kRows][kRouterExpertsMax];  // of the scores
  const int64_t number = int64_t{blockIdx.x} * kRows + threadIdx.y;
  if (number >= shape.rows) return;
  dlogits += number * shape.experts;
  experts += number * shape.chosen;
  if (experts[0] < 0) {
    for (int i = Row::Lane(); i < shape.experts; i += kWarp) Narrow(0.0f, dlogits + i);
    return;
  }
  const Row row(shape, logits, number);
  const bool counts = targets == nullptr || targets[number] >= 0;
  float* const slopes = all_slopes[threadIdx.y];
  const bool is_balanced = counts && balance != nullptr;
  if (is_balanced) balance += number / rows_per_sequence * shape.experts;
  // Of softmax a score is a share. Else a share is score / sum.
  float sum = 1;
  float mean = 0;
  if (is_balanced && !row.is_softmax) {
    sum = row.Sum([&](int i) { return row.Score(i); });
    mean = row.Sum([&](int i) { return balance[i] * row.Score(i); }) / sum;
  }
  for (int i = Row::Lane(); i < shape.experts; i += kWarp) {
    slopes[i] = is_balanced ? (balance[i] - mean) / sum : 0.0f;
  }
  __syncwarp();
  dweights += number * shape.chosen;
  const float normalizer = Normalizer(shape, row, experts);
  float mean_dweight = 0;  // by the weights
  for (int j = 0; shape.normalizes && j < shape.chosen; ++j) {
    mean_dweight += dweights[j] * row.Score(experts[j]) * normalizer;
  }
  for (int j = Row::Lane(); j < shape.chosen; j += kWarp) {
    slopes[experts[j]] += shape.scale * normalizer * (dweights[j] - mean_dweight);
  }
  __syncwarp();
  const float mean_slope =
      row.is_softmax ? row.Sum([&](int i) { return row.Score(i) * slopes[i]; }) : 0.0f;
  const float z_slope =
      counts && z_coefficient != 0 ? 2 * z_coefficient * *gradient_scale * row.log_sum_exp : 0.0f;
  for (int i = Row::Lane(); i < shape.experts; i += kWarp) {
    const float score = row.Score(i);
    const float slope = row.is_softmax ? slopes[i] - mean_slope : (1.0f - score) * slopes[i];
    Narrow(score * slope + z_slope * row.Softmax(i), dlogits + i);
  }
}

}  // namespace

void RouterForward(const RouterShape& shape, const float* logits, const float* bias,
                   const int32_t* targets, int32_t* experts, float* weights, Stream& stream) {
  CONVENE_CHECK(shape.experts <= kRouterExpertsMax);
  Launch(stream, "router_forward", CeilDivide(shape.rows, kRows), dim3(kWarp, kRows), Forward,
         shape, logits, bias, targets, experts, weights);
}

void RouterStatistics(const RouterShape& shape, int rows_per_sequence, const float* logits,
                      const int32_t* experts, const int32_t* targets, float* statistics,
                      Stream& stream) {
  Launch(stream, "router_statistics", shape.rows / rows_per_sequence,
         dim3(kWarp * RouterStatisticsWarps(shape.experts)), Statistics, shape, rows_per_sequence,
         logits, experts, targets, statistics);
}

void RouterPenalty(int sequences, const RouterShape& shape, float balance_coefficient,
                   float z_coefficient, const float* gradient_scale, const float* statistics,
                   float* balance, double* losses, Stream& stream) {
  Launch(stream, "router_penalty", 1, dim3(kSumThreads), Penalty, sequences, shape,
         balance_coefficient, z_coefficient, gradient_scale, statistics, balance, losses);
}

template <typename T>
void RouterBackward(const RouterShape& shape, int rows_per_sequence, const float* logits,
                    const int32_t* experts, const float* dweights, const float* balance,
                    float z_coefficient, const float* gradient_scale, const int32_t* targets,
                    T* dlogits, Stream& stream) {
  Launch(stream, "router_backward", CeilDivide(shape.rows, kRows), dim3(kWarp, kRows), Backward<T>,
         shape, rows_per_sequence, logits, experts, dweights, balance, z_coefficient,
         gradient_scale, targets, dlogits);
}

CONVENE_INSTANTIATE(RouterBackward);

}  // namespace convene::worker::cuda
