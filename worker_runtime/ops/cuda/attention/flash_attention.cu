#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/rounding.h"
#include "worker_runtime/ops/cuda/attention/flash_attention.h"
#include "worker_runtime/ops/instantiate.h"

// Tiles of kTile queries and kTile keys in shared memory, as floats; eight threads work on one row
// of a tile. Nothing is added by two threads, so there is one order of summation. Tiles of keys and
// queries of which none sees one of the other are skipped.
namespace convene::worker::cuda {
namespace {

constexpr int kLanes = 8;  // threads of a row: a quarter of a warp
constexpr int kWarp = 32;

template <int kHeadSizeValue, int kTileValue>
struct Tiling {
  static constexpr int kHeadSize = kHeadSizeValue;  // at least the head size; the rest is zeros
  static constexpr int kTile = kTileValue;          // rows
  static constexpr int kThreads = kTile * kLanes;
  static constexpr int kPerLane = kTile / kLanes;            // scores of a thread
  static constexpr int kValuesPerLane = kHeadSize / kLanes;  // of an output row
  // One more column: the eight threads of a row read eight rows of a tile, from eight banks.
  using Row = float[kHeadSize + 1];
  using ScoreRow = float[kTile + 1];
  static constexpr size_t kRowsBytes = kTile * sizeof(Row);
  static constexpr size_t kScoresBytes = kTile * sizeof(ScoreRow);
};

// Where the heads of a token stand and which keys a query sees (ops/attention.h).
struct Geometry {
  Geometry(const AttentionShape& shape, const int32_t* document_begin)
      : sequence_length(shape.sequence_length),
        heads(shape.heads),
        kv_heads(shape.kv_heads),
        head_size(shape.head_size),
        scale(1.0f / std::sqrt(static_cast<float>(shape.head_size))),
        document_begin(document_begin) {}

  __device__ int64_t qkv_stride() const { return int64_t{heads + 2 * kv_heads} * head_size; }
  __device__ int64_t out_stride() const { return int64_t{heads} * head_size; }
  __device__ int heads_per_kv_head() const { return heads / kv_heads; }
  // Of `position` in sequence `batch`, in a tensor shaped like qkv.
  __device__ int64_t Query(int batch, int position, int head) const {
    return (int64_t{batch} * sequence_length + position) * qkv_stride() + int64_t{head} * head_size;
  }
  __device__ int64_t Key(int batch, int position, int kv_head) const {
    return Query(batch, position, heads + kv_head);
  }
  __device__ int64_t Value(int batch, int position, int kv_head) const {
    return Query(batch, position, heads + kv_heads + kv_head);
  }
  // In a tensor shaped like out.
  __device__ int64_t Out(int batch, int position, int head) const {
    return (int64_t{batch} * sequence_length + position) * out_stride() + int64_t{head} * head_size;
  }
  // In a tensor shaped like log_sum_exp.
  __device__ int64_t Statistic(int batch, int position, int head) const {
    if (document_begin != nullptr) {
      return (int64_t{batch} * sequence_length + position) * heads + head;
    }
    return (int64_t{batch} * heads + head) * sequence_length + position;
  }
  // The first key that the query at `position` sees; never falls from one position to the next.
  // REQUIRES: position < sequence_length.
  __device__ int FirstKey(int batch, int position) const {
    if (document_begin == nullptr) return 0;
    return document_begin[int64_t{batch} * sequence_length + position];
  }
  // Past the last of the queries [begin, end) that sees `key`; begin when none does. REQUIRES: end
  // <= sequence_length, begin <= end, and none of them stands before the key.
  __device__ int SeenEnd(int batch, int begin, int end, int key) const {
    if (document_begin == nullptr) return end;
    while (begin < end) {
      const int middle = begin + (end - begin) / 2;
      if (FirstKey(batch, middle) <= key) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

  int sequence_length;
  int heads;
  int kv_heads;
  int head_size;
  float scale;
  const int32_t* document_begin;  // may be null
};

// Two neighbours; the first at an even index of its row, so the pair is aligned.
__device__ float2 LoadPair(const float* data) { return *reinterpret_cast<const float2*>(data); }
__device__ float2 LoadPair(const BFloat16* data) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(data));
}
__device__ void Store(float value, float* data) { *data = value; }
__device__ void Store(float value, BFloat16* data) {
  *reinterpret_cast<__nv_bfloat16*>(data) = __float2bfloat16_rn(value);
}

// `rows` rows of head_size values into the tile; zeros beyond them and right of them. By the whole
// block, a warp a row; the caller synchronizes.
template <typename Tiles, typename T>
__device__ void LoadTile(const T* first, int64_t stride, int rows, int head_size,
                         typename Tiles::Row* tile) {
  for (int row = threadIdx.x / kWarp; row < Tiles::kTile; row += Tiles::kThreads / kWarp) {
    for (int d = 2 * (threadIdx.x % kWarp); d < Tiles::kHeadSize; d += 2 * kWarp) {
      const bool is_there = row < rows && d < head_size;
      const float2 pair = is_there ? LoadPair(first + row * stride + d) : float2{0.0f, 0.0f};
      tile[row][d] = pair.x;
      tile[row][d + 1] = pair.y;
    }
  }
}

// products[i] = row . tile[lane + kLanes * i].
template <typename Tiles>
__device__ void Dots(const float* row, const typename Tiles::Row* tile, int lane,
                     float (&products)[Tiles::kPerLane]) {
  for (int i = 0; i < Tiles::kPerLane; ++i) products[i] = 0;
#pragma unroll 8
  for (int d = 0; d < Tiles::kHeadSize; ++d) {
    const float left = row[d];
#pragma unroll
    for (int i = 0; i < Tiles::kPerLane; ++i) products[i] += left * tile[lane + kLanes * i][d];
  }
}

// sums[i] += weight * row[lane + kLanes * i].
template <typename Tiles>
__device__ void AddScaled(float weight, const float* row, int lane,
                          float (&sums)[Tiles::kValuesPerLane]) {
#pragma unroll
  for (int i = 0; i < Tiles::kValuesPerLane; ++i) sums[i] += weight * row[lane + kLanes * i];
}

template <typename Tiles, typename T>
__device__ void StoreRow(const float (&values)[Tiles::kValuesPerLane], float factor, int lane,
                         int head_size, T* row) {
#pragma unroll
  for (int i = 0; i < Tiles::kValuesPerLane; ++i) {
    const int d = lane + kLanes * i;
    if (d < head_size) Store(factor * values[i], row + d);
  }
}

// Over the eight threads of a row; each gets the result.
__device__ float RowMax(float value) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
  }
  return value;
}
__device__ float RowSum(float value) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, offset);
  }
  return value;
}

// A block: kTile queries of one head. grid: (tiles, heads, batch).
template <typename Tiles, typename T>
__global__ __launch_bounds__(Tiles::kThreads) void ForwardKernel(Geometry geometry, const T* qkv,
                                                                 T* out, float* log_sum_exp) {
  constexpr int kTile = Tiles::kTile;
  extern __shared__ float shared[];
  auto* const queries = reinterpret_cast<typename Tiles::Row*>(shared);
  auto* const keys = queries + kTile;
  auto* const values = keys + kTile;
  auto* const weights = reinterpret_cast<typename Tiles::ScoreRow*>(values + kTile);

  // The longest rows first: the short ones fill the gaps at the end.
  const int query_begin = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int head = static_cast<int>(blockIdx.y);
  const int batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / geometry.heads_per_kv_head();
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int query = query_begin + row;
  const int length = geometry.sequence_length;

  LoadTile<Tiles>(qkv + geometry.Query(batch, query_begin, head), geometry.qkv_stride(),
                  length - query_begin, geometry.head_size, queries);
  float sums[Tiles::kValuesPerLane] = {};
  float row_max = -INFINITY;
  float weight_sum = 0;  // this thread's share
  const int tile_first_key = geometry.FirstKey(batch, query_begin);
  const int row_first_key = query < length ? geometry.FirstKey(batch, query) : tile_first_key;
  for (int key_begin = tile_first_key / kTile * kTile; key_begin <= query_begin;
       key_begin += kTile) {
    __syncthreads();  // nobody reads the tiles of before
    LoadTile<Tiles>(qkv + geometry.Key(batch, key_begin, kv_head), geometry.qkv_stride(),
                    length - key_begin, geometry.head_size, keys);
    LoadTile<Tiles>(qkv + geometry.Value(batch, key_begin, kv_head), geometry.qkv_stride(),
                    length - key_begin, geometry.head_size, values);
    __syncthreads();
    const int hidden = row_first_key - key_begin;
    const int visible = min(kTile, query - key_begin + 1);
    float scores[Tiles::kPerLane];
    Dots<Tiles>(queries[row], keys, lane, scores);
    float new_max = row_max;
    for (int i = 0; i < Tiles::kPerLane; ++i) {
      const int c = lane + kLanes * i;
      scores[i] = c >= hidden && c < visible ? geometry.scale * scores[i] : -INFINITY;
      new_max = fmaxf(new_max, scores[i]);
    }
    new_max = RowMax(new_max);
    // A row whose document begins after this tile has no maximum yet, and no weights.
    const float shift = new_max == -INFINITY ? 0.0f : new_max;
    const float rescale = expf(row_max - shift);
    row_max = new_max;
    weight_sum *= rescale;
    for (int i = 0; i < Tiles::kPerLane; ++i) {
      const float weight = expf(scores[i] - shift);
      weight_sum += weight;
      weights[row][lane + kLanes * i] = weight;
    }
    __syncwarp();  // a row's weights stay within its warp
    for (int i = 0; i < Tiles::kValuesPerLane; ++i) sums[i] *= rescale;
    for (int c = max(0, hidden); c < visible; ++c) {
      AddScaled<Tiles>(weights[row][c], values[c], lane, sums);
    }
  }
  weight_sum = RowSum(weight_sum);
  if (query >= length) return;
  StoreRow<Tiles>(sums, 1.0f / weight_sum, lane, geometry.head_size,
                  out + geometry.Out(batch, query, head));
  if (lane == 0) {
    log_sum_exp[geometry.Statistic(batch, query, head)] = row_max + logf(weight_sum);
  }
}

// delta = dout . out of each row, shaped like log_sum_exp. A warp a row.
template <typename T>
__global__ void DeltaKernel(Geometry geometry, int64_t rows, const T* out, const T* dout,
                            float* delta) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;  // the whole warp
  float sum = 0;
  for (int d = 2 * lane; d < geometry.head_size; d += 2 * kWarp) {
    const float2 left = LoadPair(out + row * geometry.head_size + d);
    const float2 right = LoadPair(dout + row * geometry.head_size + d);
    sum += left.x * right.x + left.y * right.y;
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, offset);
  }
  const int head = static_cast<int>(row % geometry.heads);
  const int64_t token = row / geometry.heads;
  const int batch = static_cast<int>(token / geometry.sequence_length);
  const int position = static_cast<int>(token % geometry.sequence_length);
  if (lane == 0) delta[geometry.Statistic(batch, position, head)] = sum;
}

// With p = exp(score - log_sum_exp), dp = dout . value: dscore = p (dp - delta), dquery = scale *
// sum over keys of dscore * key. A block: kTile queries of one head. grid: (tiles, heads, batch).
template <typename Tiles, typename T>
__global__ __launch_bounds__(Tiles::kThreads) void QueryGradientKernel(Geometry geometry,
                                                                       const T* qkv,
                                                                       const float* log_sum_exp,
                                                                       const float* delta,
                                                                       const T* dout, T* dqkv) {
  constexpr int kTile = Tiles::kTile;
  extern __shared__ float shared[];
  auto* const queries = reinterpret_cast<typename Tiles::Row*>(shared);
  auto* const gradients = queries + kTile;
  auto* const keys = gradients + kTile;
  auto* const values = keys + kTile;
  auto* const dscores = reinterpret_cast<typename Tiles::ScoreRow*>(values + kTile);

  const int query_begin = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int head = static_cast<int>(blockIdx.y);
  const int batch = static_cast<int>(blockIdx.z);
  const int kv_head = head / geometry.heads_per_kv_head();
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int query = query_begin + row;
  const int length = geometry.sequence_length;

  LoadTile<Tiles>(qkv + geometry.Query(batch, query_begin, head), geometry.qkv_stride(),
                  length - query_begin, geometry.head_size, queries);
  LoadTile<Tiles>(dout + geometry.Out(batch, query_begin, head), geometry.out_stride(),
                  length - query_begin, geometry.head_size, gradients);
  const bool is_there = query < length;
  const int64_t statistic = geometry.Statistic(batch, query, head);
  const float row_log_sum_exp = is_there ? log_sum_exp[statistic] : 0.0f;
  const float row_delta = is_there ? delta[statistic] : 0.0f;
  const int tile_first_key = geometry.FirstKey(batch, query_begin);
  const int row_first_key = is_there ? geometry.FirstKey(batch, query) : tile_first_key;
  float sums[Tiles::kValuesPerLane] = {};
  for (int key_begin = tile_first_key / kTile * kTile; key_begin <= query_begin;
       key_begin += kTile) {
    __syncthreads();  // nobody reads the tiles of before
    LoadTile<Tiles>(qkv + geometry.Key(batch, key_begin, kv_head), geometry.qkv_stride(),
                    length - key_begin, geometry.head_size, keys);
    LoadTile<Tiles>(qkv + geometry.Value(batch, key_begin, kv_head), geometry.qkv_stride(),
                    length - key_begin, geometry.head_size, values);
    __syncthreads();
    const int visible = min(kTile, query - key_begin + 1);
    float scores[Tiles::kPerLane];
    float dweights[Tiles::kPerLane];
    Dots<Tiles>(queries[row], keys, lane, scores);
    Dots<Tiles>(gradients[row], values, lane, dweights);
    for (int i = 0; i < Tiles::kPerLane; ++i) {
      const float weight = expf(geometry.scale * scores[i] - row_log_sum_exp);
      dscores[row][lane + kLanes * i] = weight * (dweights[i] - row_delta);
    }
    __syncwarp();  // a row's dscores stay within its warp
    for (int c = max(0, row_first_key - key_begin); c < visible; ++c) {
      AddScaled<Tiles>(dscores[row][c], keys[c], lane, sums);
    }
  }
  if (!is_there) return;
  StoreRow<Tiles>(sums, geometry.scale, lane, geometry.head_size,
                  dqkv + geometry.Query(batch, query, head));
}

// dvalue = sum over queries of p * dout, dkey = scale * sum over queries of dscore * query, over
// all heads that share the key. A block: kTile keys of one key-value head. grid: (tiles, kv_heads,
// batch).
template <typename Tiles, typename T>
__global__ __launch_bounds__(Tiles::kThreads) void KeyValueGradientKernel(Geometry geometry,
                                                                          const T* qkv,
                                                                          const float* log_sum_exp,
                                                                          const float* delta,
                                                                          const T* dout, T* dqkv) {
  constexpr int kTile = Tiles::kTile;
  extern __shared__ float shared[];
  auto* const keys = reinterpret_cast<typename Tiles::Row*>(shared);
  auto* const values = keys + kTile;
  auto* const queries = values + kTile;
  auto* const gradients = queries + kTile;
  auto* const weights = reinterpret_cast<typename Tiles::ScoreRow*>(gradients + kTile);
  auto* const dscores = weights + kTile;

  const int key_begin = static_cast<int>(blockIdx.x) * kTile;  // the first has most queries
  const int kv_head = static_cast<int>(blockIdx.y);
  const int batch = static_cast<int>(blockIdx.z);
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int key = key_begin + row;
  const int length = geometry.sequence_length;

  LoadTile<Tiles>(qkv + geometry.Key(batch, key_begin, kv_head), geometry.qkv_stride(),
                  length - key_begin, geometry.head_size, keys);
  LoadTile<Tiles>(qkv + geometry.Value(batch, key_begin, kv_head), geometry.qkv_stride(),
                  length - key_begin, geometry.head_size, values);
  float key_sums[Tiles::kValuesPerLane] = {};
  float value_sums[Tiles::kValuesPerLane] = {};
  const int last_key = min(key_begin + kTile, length) - 1;
  const int first_head = kv_head * geometry.heads_per_kv_head();
  for (int head = first_head; head < first_head + geometry.heads_per_kv_head(); ++head) {
    for (int query_begin = key_begin; query_begin < length; query_begin += kTile) {
      // All later queries belong to documents that begin after this tile: the whole block agrees.
      if (geometry.FirstKey(batch, query_begin) > last_key) break;
      __syncthreads();  // nobody reads the tiles of before
      LoadTile<Tiles>(qkv + geometry.Query(batch, query_begin, head), geometry.qkv_stride(),
                      length - query_begin, geometry.head_size, queries);
      LoadTile<Tiles>(dout + geometry.Out(batch, query_begin, head), geometry.out_stride(),
                      length - query_begin, geometry.head_size, gradients);
      __syncthreads();
      // The queries of this tile that see the key.
      const int tile_end = min(kTile, length - query_begin);
      const int seen_begin = min(max(0, key - query_begin), tile_end);
      const int seen_end =
          geometry.SeenEnd(batch, query_begin + seen_begin, query_begin + tile_end, key) -
          query_begin;
      float scores[Tiles::kPerLane];
      float dweights[Tiles::kPerLane];
      Dots<Tiles>(keys[row], queries, lane, scores);
      Dots<Tiles>(values[row], gradients, lane, dweights);
      for (int i = 0; i < Tiles::kPerLane; ++i) {
        const int c = lane + kLanes * i;
        if (c < seen_begin || c >= seen_end) continue;
        const int64_t statistic = geometry.Statistic(batch, query_begin + c, head);
        const float weight = expf(geometry.scale * scores[i] - log_sum_exp[statistic]);
        weights[row][c] = weight;
        dscores[row][c] = weight * (dweights[i] - delta[statistic]);
      }
      __syncwarp();  // a row's weights stay within its warp
      for (int c = seen_begin; c < seen_end; ++c) {
        AddScaled<Tiles>(weights[row][c], gradients[c], lane, value_sums);
        AddScaled<Tiles>(dscores[row][c], queries[c], lane, key_sums);
      }
    }
  }
  if (key >= length) return;
  StoreRow<Tiles>(key_sums, geometry.scale, lane, geometry.head_size,
                  dqkv + geometry.Key(batch, key, kv_head));
  StoreRow<Tiles>(value_sums, 1.0f, lane, geometry.head_size,
                  dqkv + geometry.Value(batch, key, kv_head));
}

// Calls `launch` with the tiling for the head size, unless there is none.
template <typename Launch>
void WithTiling(int head_size, Queue& queue, const Launch& launch) {
  if (head_size % 2 != 0 || head_size <= 0 || head_size > kLargestFlashHeadSize) {
    queue.Report(absl::InvalidArgumentError(
        absl::StrCat("attention: no kernel for head size ", head_size,
                     ": it must be even and at most ", kLargestFlashHeadSize)));
  } else if (head_size <= 64) {
    launch(Tiling<64, 32>());
  } else if (head_size <= 128) {
    launch(Tiling<128, 32>());
  } else {
    launch(Tiling<256, 16>());  // half the rows: the tiles fit into any GPU's shared memory
  }
}

// Queues a block for each tile of `heads` heads of every sequence. A kernel must ask for more than
// 48 KiB of shared memory.
template <typename Tiles, typename... Parameters, typename... Arguments>
void LaunchTiles(const char* what, const AttentionShape& shape, int heads, size_t bytes,
                 Queue& queue, void (*kernel)(Parameters...), const Arguments&... arguments) {
  queue.Report(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "attention: shared memory");
  const dim3 grid(static_cast<unsigned int>(CeilDivide(shape.sequence_length, Tiles::kTile)),
                  static_cast<unsigned int>(heads), static_cast<unsigned int>(shape.batch));
  kernel<<<grid, Tiles::kThreads, bytes, queue.stream()>>>(arguments...);
  queue.ReportLaunch(what);
}

}  // namespace

template <typename T>
void FlashForward(const AttentionShape& shape, const int32_t* document_begin, const T* qkv, T* out,
                  float* log_sum_exp, Queue& queue) {
  WithTiling(shape.head_size, queue, [&](auto tiling) {
    using Tiles = decltype(tiling);
    constexpr size_t kSharedBytes = 3 * Tiles::kRowsBytes + Tiles::kScoresBytes;
    LaunchTiles<Tiles>("attention_forward", shape, shape.heads, kSharedBytes, queue,
                       ForwardKernel<Tiles, T>, Geometry(shape, document_begin), qkv, out,
                       log_sum_exp);
  });
}

template <typename T>
void FlashBackward(const AttentionShape& shape, const int32_t* document_begin, const T* qkv,
                   const T* out, const float* log_sum_exp, const T* dout, T* dqkv, void* workspace,
                   Queue& queue) {
  const Geometry geometry(shape, document_begin);
  WithTiling(shape.head_size, queue, [&](auto tiling) {
    using Tiles = decltype(tiling);
    auto* const delta = static_cast<float*>(workspace);
    constexpr int kDeltaThreads = 256;
    const int64_t rows = int64_t{shape.batch} * shape.sequence_length * shape.heads;
    const int64_t delta_blocks = CeilDivide(rows * kWarp, kDeltaThreads);
    DeltaKernel<T><<<static_cast<unsigned int>(delta_blocks), kDeltaThreads, 0, queue.stream()>>>(
        geometry, rows, out, dout, delta);
    queue.ReportLaunch("attention_backward: delta");

    constexpr size_t kQueryBytes = 4 * Tiles::kRowsBytes + Tiles::kScoresBytes;
    LaunchTiles<Tiles>("attention_backward: queries", shape, shape.heads, kQueryBytes, queue,
                       QueryGradientKernel<Tiles, T>, geometry, qkv, log_sum_exp, delta, dout,
                       dqkv);
    constexpr size_t kKeyBytes = 4 * Tiles::kRowsBytes + 2 * Tiles::kScoresBytes;
    LaunchTiles<Tiles>("attention_backward: keys and values", shape, shape.kv_heads, kKeyBytes,
                       queue, KeyValueGradientKernel<Tiles, T>, geometry, qkv, log_sum_exp, delta,
                       dout, dqkv);
  });
}

CONVENE_INSTANTIATE(FlashForward);
CONVENE_INSTANTIATE(FlashBackward);

}  // namespace convene::worker::cuda
