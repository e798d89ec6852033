// The heads of latent attention, put together and taken apart. A block takes a row.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kThreads = 256;

// Where element i of a head, in the order of attention, stands among the rotary ones as pairs.
__device__ __forceinline__ int PairPlace(const LatentHeads& s, int i) {
  const int half = s.rotary / 2;
  return i < half ? 2 * i : 2 * (i - half) + 1;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Forward(const LatentHeads s, const T* queries, int query_stride, const T* keys_values,
            const T* rotary_key, int rotary_stride, T* qkv) {
  const int size = s.plain + s.rotary;
  const int width = s.heads * size;
  const int64_t row = blockIdx.x;
  queries += row * query_stride;
  keys_values += row * s.heads * (s.plain + s.value);
  rotary_key += row * rotary_stride;
  qkv += row * 3 * width;
  for (int place = static_cast<int>(threadIdx.x); place < width; place += kThreads) {
    const int head = place / size;
    const int i = place % size;
    const T* const query = queries + head * size;
    const T* const key_value = keys_values + head * (s.plain + s.value);
    const bool turns = i < s.rotary;
    qkv[place] = turns ? query[s.plain + PairPlace(s, i)] : query[i - s.rotary];
    qkv[width + place] = turns ? rotary_key[PairPlace(s, i)] : key_value[i - s.rotary];
    qkv[2 * width + place] = i < s.value ? key_value[s.plain + i] : T{};
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Backward(const LatentHeads s, const T* dqkv, T* dqueries, int query_stride, T* dkeys_values,
             T* drotary_key, int rotary_stride) {
  const int size = s.plain + s.rotary;
  const int width = s.heads * size;
  const int64_t row = blockIdx.x;
  dqkv += row * 3 * width;
  dqueries += row * query_stride;
  dkeys_values += row * s.heads * (s.plain + s.value);
  drotary_key += row * rotary_stride;
  for (int place = static_cast<int>(threadIdx.x); place < width; place += kThreads) {
    const int head = place / size;
    const int i = place % size;
    T* const query = dqueries + head * size;
    T* const key_value = dkeys_values + head * (s.plain + s.value);
    if (i < s.rotary) {
      query[s.plain + PairPlace(s, i)] = dqkv[place];
    } else {
      query[i - s.rotary] = dqkv[place];
      key_value[i - s.rotary] = dqkv[width + place];
    }
    if (i < s.value) key_value[s.plain + i] = dqkv[2 * width + place];
  }
  for (int i = static_cast<int>(threadIdx.x); i < s.rotary; i += kThreads) {
    float sum = 0;
    for (int head = 0; head < s.heads; ++head) sum += Widen(dqkv + width + head * size + i);
    Narrow(sum, drotary_key + PairPlace(s, i));
  }
}

}  // namespace

template <typename T>
void LatentHeadsForward(const LatentHeads& shape, const T* queries, int query_stride,
                        const T* keys_values, const T* rotary_key, int rotary_stride, T* qkv,
                        Stream& stream) {
  Launch(stream, "latent_heads_forward", shape.rows, dim3(kThreads), Forward<T>, shape, queries,
         query_stride, keys_values, rotary_key, rotary_stride, qkv);
}

template <typename T>
void LatentHeadsBackward(const LatentHeads& shape, const T* dqkv, T* dqueries, int query_stride,
                         T* dkeys_values, T* drotary_key, int rotary_stride, Stream& stream) {
  Launch(stream, "latent_heads_backward", shape.rows, dim3(kThreads), Backward<T>, shape, dqkv,
         dqueries, query_stride, dkeys_values, drotary_key, rotary_stride);
}

CONVENE_INSTANTIATE(LatentHeadsForward);
CONVENE_INSTANTIATE(LatentHeadsBackward);

}  // namespace convene::worker::cuda
