#include "worker_runtime/ops/cpu/query_attention.h"

#include <algorithm>
#include <limits>

#include "worker_runtime/ops/cpu/block_product.h"
#include "worker_runtime/ops/cpu/lanes.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/softmax.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// Rows that are read side by side, so that one does not wait for another.
constexpr int kRowsAtOnce = 4;
constexpr int kLanes = 8;

// The rows of one head lie far apart, where the processor's own prefetch does not go.
template <int kRows, typename T>
CONVENE_CPU_INLINE void FetchRowsAhead(int width, const T* rows, ptrdiff_t stride) {
  constexpr int kAhead = 4 * kRowsAtOnce;
  constexpr int kLine = 64 / sizeof(T);
#pragma GCC unroll 4
  for (int row = kAhead; row < kAhead + kRows; ++row) {
    for (int i = 0; i < width; i += kLine) __builtin_prefetch(rows + row * stride + i);
  }
}

// Not by `omp simd reduction`: gcc keeps each row's sum in memory (bf16: 140 cycles a row of 64
// against 20).
template <int kRows, typename T>
CONVENE_CPU_INLINE void DotSome(int width, const float* query, const T* keys, ptrdiff_t stride,
                                float* products) {
  FetchRowsAhead<kRows>(width, keys, stride);
  Register<kLanes> sums[kRows] = {}, terms, key;
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Load(query + i, &terms);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      LoadLanes<kLanes>(keys + row * stride + i, &key);
      sums[row] += terms * key;
    }
  }
  static_assert(kRows == 1 || kRows == 4);
  Register<4> all;
  SumsOf<kLanes>(sums[0], sums[kRows / 4], sums[kRows / 2], sums[kRows - 1], &all);
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    products[row] = all[row];
    for (int rest = i; rest < width; ++rest) {
      products[row] += query[rest] * Widen(keys[row * stride + rest]);
    }
  }
}

// products[i] = query . keys[i], rows of `width` elements, `stride` apart.
template <typename T>
CONVENE_CPU_CLONES void DotRows(int rows, int width, const float* query, const T* keys,
                                ptrdiff_t stride, float* products) {
  int row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
    DotSome<kRowsAtOnce>(width, query, keys + row * stride, stride, products + row);
  }
  for (; row < rows; ++row) DotSome<1>(width, query, keys + row * stride, stride, products + row);
}

template <int kRows, typename T>
CONVENE_CPU_INLINE void AddSome(int width, const float* factors, const T* values, ptrdiff_t stride,
                                float* sums) {
  FetchRowsAhead<kRows>(width, values, stride);
  Register<kLanes> sum, value;
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Load(sums + i, &sum);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      LoadLanes<kLanes>(values + row * stride + i, &value);
      sum += factors[row] * value;
    }
    Store(sum, sums + i);
  }
  for (; i < width; ++i) {
    for (int row = 0; row < kRows; ++row) sums[i] += factors[row] * Widen(values[row * stride + i]);
  }
}

template <typename T>
CONVENE_CPU_CLONES void AddRows(int rows, int width, const float* factors, const T* values,
                                ptrdiff_t stride, float* sums) {
  int row = 0;
  for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce) {
    AddSome<kRowsAtOnce>(width, factors + row, values + row * stride, stride, sums);
  }
  for (; row < rows; ++row) AddSome<1>(width, factors + row, values + row * stride, stride, sums);
}

}  // namespace

template <typename T>
void QueryAttention(const QueryShape& shape, const float* query, const KeysInPlace<T>& keys,
                    float* scores, float* max, float* sum, float* out) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  std::fill_n(out, shape.head_size, 0.0f);
  *max = kMinusInfinity;
  *sum = 0;
  for (int first = 0; first < shape.keys; first += kScores) {
    const int count = std::min(kScores, shape.keys - first);
    const int padded = RoundUpToVector(count);
    DotRows(count, shape.head_size, query, keys.keys + first * keys.key_stride, keys.key_stride,
            scores);
    if (shape.cap > 0) CapRow(count, shape.cap, scores);
    std::fill(scores + count, scores + padded, kMinusInfinity);
    SoftmaxRow(padded, shape.head_size, scores, max, sum, out);
    AddRows(count, shape.head_size, scores, keys.values + first * keys.value_stride,
            keys.value_stride, out);
  }
}

CONVENE_INSTANTIATE(QueryAttention);

}  // namespace convene::worker::cpu
