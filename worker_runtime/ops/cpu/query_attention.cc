#include "worker_runtime/ops/cpu/query_attention.h"

#include <algorithm>
#include <limits>

#include "worker_runtime/ops/cpu/block_product.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/softmax.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

// products[i] = query . keys[i], rows of `width` elements, `stride` apart.
template <typename T>
CONVENE_CPU_CLONES void DotRows(int rows, int width, const float* query, const T* keys,
                                ptrdiff_t stride, float* products) {
  for (int row = 0; row < rows; ++row) {
    const T* const key = keys + row * stride;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < width; ++i) sum += query[i] * Widen(key[i]);
    products[row] = sum;
  }
}

template <typename T>
CONVENE_CPU_CLONES void AddRows(int rows, int width, const float* factors, const T* values,
                                ptrdiff_t stride, float* sums) {
  for (int row = 0; row < rows; ++row) {
    const T* const value = values + row * stride;
    const float factor = factors[row];
#pragma omp simd
    for (int i = 0; i < width; ++i) sums[i] += factor * Widen(value[i]);
  }
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
