#include "worker_runtime/ops/latent_heads.h"

#include <algorithm>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 0.5;  // an element of qkv

// The pairs of an even number of elements, as halves.
template <typename T>
void ToHalves(int size, const T* pairs, T* halves) {
  for (int i = 0; i < size / 2; ++i) {
    halves[i] = pairs[2 * i];
    halves[size / 2 + i] = pairs[2 * i + 1];
  }
}

template <typename T>
void ForwardRow(const LatentHeads& s, const T* queries, const T* keys_values, const T* rotary_key,
                T* qkv) {
  const int size = s.head_size();
  T* keys = qkv + s.heads * size;
  T* values = keys + s.heads * size;
  for (int head = 0; head < s.heads; ++head) {
    ToHalves(s.rotary, queries + s.plain, qkv);
    std::copy_n(queries, s.plain, qkv + s.rotary);
    ToHalves(s.rotary, rotary_key, keys);
    std::copy_n(keys_values, s.plain, keys + s.rotary);
    std::copy_n(keys_values + s.plain, s.value, values);
    std::fill(values + s.value, values + size, T{});
    queries += size;
    keys_values += s.plain + s.value;
    qkv += size;
    keys += size;
    values += size;
  }
}

template <typename T>
void BackwardRow(const LatentHeads& s, const T* dqkv, T* dqueries, T* dkeys_values,
                 T* drotary_key) {
  const int size = s.head_size();
  const int half = s.rotary / 2;
  const T* const first_key = dqkv + s.heads * size;
  for (int head = 0; head < s.heads; ++head) {
    const T* const query = dqkv + head * size;
    const T* const key = first_key + head * size;
    for (int i = 0; i < half; ++i) {
      dqueries[s.plain + 2 * i] = query[i];
      dqueries[s.plain + 2 * i + 1] = query[half + i];
    }
    std::copy_n(query + s.rotary, s.plain, dqueries);
    std::copy_n(key + s.rotary, s.plain, dkeys_values);
    std::copy_n(key + s.heads * size, s.value, dkeys_values + s.plain);
    dqueries += size;
    dkeys_values += s.plain + s.value;
  }
  for (int i = 0; i < s.rotary; ++i) {
    float sum = 0;
    for (int head = 0; head < s.heads; ++head) sum += Widen(first_key[head * size + i]);
    Narrow(sum, &drotary_key[i < half ? 2 * i : 2 * (i - half) + 1]);
  }
}

double Nanoseconds(const LatentHeads& s) {
  return kNanoseconds * 3 * s.rows * s.heads * s.head_size();
}

}  // namespace

template <typename T>
void LatentHeadsForward(const LatentHeads& shape, const T* queries, int query_stride,
                        const T* keys_values, const T* rotary_key, int rotary_stride, T* qkv,
                        Stream& /*stream*/) {
  ForPieces(Nanoseconds(shape), shape.rows, [=](int64_t row) {
    ForwardRow(shape, queries + row * query_stride,
               keys_values + row * shape.heads * (shape.plain + shape.value),
               rotary_key + row * rotary_stride, qkv + row * 3 * shape.heads * shape.head_size());
  });
}

template <typename T>
void LatentHeadsBackward(const LatentHeads& shape, const T* dqkv, T* dqueries, int query_stride,
                         T* dkeys_values, T* drotary_key, int rotary_stride, Stream& /*stream*/) {
  ForPieces(Nanoseconds(shape), shape.rows, [=](int64_t row) {
    BackwardRow(shape, dqkv + row * 3 * shape.heads * shape.head_size(),
                dqueries + row * query_stride,
                dkeys_values + row * shape.heads * (shape.plain + shape.value),
                drotary_key + row * rotary_stride);
  });
}

CONVENE_INSTANTIATE(LatentHeadsForward);
CONVENE_INSTANTIATE(LatentHeadsBackward);

}  // namespace convene::worker::cpu
