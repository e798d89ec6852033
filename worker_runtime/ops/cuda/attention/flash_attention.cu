#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/ops/attention_merge.h"
#include "worker_runtime/ops/cuda/attention/flash_attention.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
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

// How many of a rising list of positions (null: 0, 1, 2, ...) come before `position`.
__device__ int CountBefore(const int32_t* positions, int count, int position) {
  if (positions == nullptr) return min(position, count);
  int begin = 0;
  int end = count;
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (positions[middle] < position) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Where the heads of a token stand and which keys a query sees (ops/attention.h).
struct Geometry {
  Geometry(const AttentionShape& shape, const int32_t* document_begin,
           const AttentionPositions& positions)
      : queries(shape.sequence_length),
        keys(shape.key_count()),
        heads(shape.heads),
        kv_heads(shape.kv_heads),
        head_size(shape.head_size),
        scale(shape.scale()),
        cap(shape.score_cap),
        heads_last(shape.packed && !shape.is_part()),
        window(shape.window),
        document_begin(document_begin),
        positions(positions) {}

  // From the dot product; and what its gradient is multiplied with behind a cap.
  __device__ float Score(float dot) const {
    return cap == 0.0f ? scale * dot : cap * tanhf(scale * dot / cap);
  }
  __device__ float Slope(float score) const {
    return cap == 0.0f ? 1.0f : 1.0f - score / cap * (score / cap);
  }

  __device__ int64_t out_stride() const { return int64_t{heads} * head_size; }
  __device__ int heads_per_kv_head() const { return heads / kv_heads; }
  template <typename T>
  __device__ T* Head(const TokenHeads<T>& all, int batch, int token, int head) const {
    return all.data + batch * all.row_stride + token * all.token_stride + int64_t{head} * head_size;
  }
  // In a tensor shaped like out.
  __device__ int64_t Out(int batch, int query, int head) const {
    return (int64_t{batch} * queries + query) * out_stride() + int64_t{head} * head_size;
  }
  // In a tensor shaped like log_sum_exp.
  __device__ int64_t Statistic(int batch, int query, int head) const {
    if (heads_last) return (int64_t{batch} * queries + query) * heads + head;
    return (int64_t{batch} * heads + head) * queries + query;
  }
  // The same for the row of a tensor shaped like out, (rows, head_size).
  __device__ int64_t Statistic(int64_t row) const {
    const int64_t token = row / heads;
    return Statistic(static_cast<int>(token / queries), static_cast<int>(token % queries),
                     static_cast<int>(row % heads));
  }
  // A query sees the keys [FirstKey, EndKey), a key is seen by the queries [SeenBegin, SeenEnd) (by
  // none if that is empty or turned round). None of the four falls from one query or key to the
  // next, as positions rise. REQUIRES: query < queries, key < keys.
  __device__ int FirstKey(int batch, int query) const {
    if (document_begin == nullptr && window == 0) return 0;
    int begin = document_begin == nullptr ? 0 : document_begin[int64_t{batch} * queries + query];
    if (window > 0) begin = max(begin, QueryPosition(query) - window + 1);
    return CountBefore(positions.keys, keys, begin);
  }
  __device__ int EndKey(int query) const {
    return CountBefore(positions.keys, keys, QueryPosition(query) + 1);
  }
  __device__ int SeenBegin(int key) const {
    return CountBefore(positions.queries, queries, KeyPosition(key));
  }
  __device__ int SeenEnd(int batch, int key) const {
    const int position = KeyPosition(key);
    const int in_window =
        window > 0 ? CountBefore(positions.queries, queries, position + window) : queries;
    if (document_begin == nullptr) return in_window;
    return min(in_window,
               CountBefore(document_begin + int64_t{batch} * queries, queries, position + 1));
  }
  __device__ int QueryPosition(int query) const {
    return positions.queries == nullptr ? query : positions.queries[query];
  }
  __device__ int KeyPosition(int key) const {
    return positions.keys == nullptr ? key : positions.keys[key];
  }

  int queries;  // of a row, as are the keys
  int keys;
  int heads;
  int kv_heads;
  int head_size;
  float scale;
  float cap;                      // of scores; 0: none
  bool heads_last;                // of log_sum_exp
  int window;                     // 0: none
  const int32_t* document_begin;  // may be null
  AttentionPositions positions;
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

// `adds`: to what the row holds; only of floats.
template <typename Tiles, typename T>
__device__ void StoreRow(const float (&values)[Tiles::kValuesPerLane], float factor, int lane,
                         int head_size, bool adds, T* row) {
#pragma unroll
  for (int i = 0; i < Tiles::kValuesPerLane; ++i) {
    const int d = lane + kLanes * i;
    if (d >= head_size) continue;
    float value = factor * values[i];
    if constexpr (std::is_same_v<T, float>) {
      if (adds) value += row[d];
    }
    Store(value, row + d);
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
__global__ __launch_bounds__(Tiles::kThreads) void ForwardKernel(Geometry geometry,
                                                                 QueriesKeysValues<const T> qkv,
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
  const bool is_there = query < geometry.queries;

  LoadTile<Tiles>(geometry.Head(qkv.queries, batch, query_begin, head), qkv.queries.token_stride,
                  geometry.queries - query_begin, geometry.head_size, queries);
  float sums[Tiles::kValuesPerLane] = {};
  float row_max = -INFINITY;
  float weight_sum = 0;  // this thread's share
  const int tile_end_key = geometry.EndKey(min(query_begin + kTile, geometry.queries) - 1);
  const int row_first_key = is_there ? geometry.FirstKey(batch, query) : 0;
  const int row_end_key = is_there ? geometry.EndKey(query) : 0;
  for (int key_begin = geometry.FirstKey(batch, query_begin) / kTile * kTile;
       key_begin < tile_end_key; key_begin += kTile) {
    __syncthreads();  // nobody reads the tiles of before
    LoadTile<Tiles>(geometry.Head(qkv.keys, batch, key_begin, kv_head), qkv.keys.token_stride,
                    geometry.keys - key_begin, geometry.head_size, keys);
    LoadTile<Tiles>(geometry.Head(qkv.values, batch, key_begin, kv_head), qkv.values.token_stride,
                    geometry.keys - key_begin, geometry.head_size, values);
    __syncthreads();
    const int hidden = row_first_key - key_begin;
    const int visible = min(kTile, row_end_key - key_begin);
    float scores[Tiles::kPerLane];
    Dots<Tiles>(queries[row], keys, lane, scores);
    float new_max = row_max;
    for (int i = 0; i < Tiles::kPerLane; ++i) {
      const int c = lane + kLanes * i;
      scores[i] = c >= hidden && c < visible ? geometry.Score(scores[i]) : -INFINITY;
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
  weight_sum = RowSum(weight_sum);  // 0 when the query sees no key
  if (!is_there) return;
  StoreRow<Tiles>(sums, weight_sum == 0.0f ? 0.0f : 1.0f / weight_sum, lane, geometry.head_size,
                  /*adds=*/false, out + geometry.Out(batch, query, head));
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
  if (lane == 0) delta[geometry.Statistic(row)] = sum;
}

// A warp a row of part_out. `merged`: of all queries, of which the part's begin at `first`.
template <typename T>
__global__ void MergeKernel(Geometry geometry, int64_t rows, Geometry merged, int first,
                            const T* part_out, const float* part_log_sum_exp, bool is_first,
                            float* out, float* log_sum_exp) {
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (row >= rows) return;  // the whole warp
  const int head = static_cast<int>(row % geometry.heads);
  const int64_t token = row / geometry.heads;
  const int batch = static_cast<int>(token / geometry.queries);
  const int query = first + static_cast<int>(token % geometry.queries);
  const int64_t statistic = merged.Statistic(batch, query, head);
  const MergeWeights weights(is_first ? -INFINITY : log_sum_exp[statistic],
                             part_log_sum_exp[geometry.Statistic(row)]);
  for (int d = 2 * lane; d < geometry.head_size; d += 2 * kWarp) {
    const float2 part = LoadPair(part_out + row * geometry.head_size + d);
    float* const sums = out + merged.Out(batch, query, head) + d;
    sums[0] = is_first ? part.x : weights.kept * sums[0] + weights.part * part.x;
    sums[1] = is_first ? part.y : weights.kept * sums[1] + weights.part * part.y;
  }
  __syncwarp();  // every lane has read log_sum_exp
  if (lane == 0) log_sum_exp[statistic] = weights.log_sum_exp;
}

// With p = exp(score - log_sum_exp), dp = dout . value: dscore = p (dp - delta), dquery = scale *
// sum over keys of dscore * key. A block: kTile queries of one head. grid: (tiles, heads, batch).
template <typename Tiles, typename T, typename Gradient>
__global__ __launch_bounds__(Tiles::kThreads) void QueryGradientKernel(
    Geometry geometry, QueriesKeysValues<const T> qkv, const float* log_sum_exp, const float* delta,
    const T* dout, bool adds, TokenHeads<Gradient> dqueries) {
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
  const int queries_left = geometry.queries - query_begin;

  LoadTile<Tiles>(geometry.Head(qkv.queries, batch, query_begin, head), qkv.queries.token_stride,
                  queries_left, geometry.head_size, queries);
  LoadTile<Tiles>(dout + geometry.Out(batch, query_begin, head), geometry.out_stride(),
                  queries_left, geometry.head_size, gradients);
  const bool is_there = row < queries_left;
  const int64_t statistic = geometry.Statistic(batch, query, head);
  const float row_log_sum_exp = is_there ? log_sum_exp[statistic] : 0.0f;
  const float row_delta = is_there ? delta[statistic] : 0.0f;
  const int tile_end_key = geometry.EndKey(query_begin + min(kTile, queries_left) - 1);
  const int row_first_key = is_there ? geometry.FirstKey(batch, query) : 0;
  const int row_end_key = is_there ? geometry.EndKey(query) : 0;
  float sums[Tiles::kValuesPerLane] = {};
  for (int key_begin = geometry.FirstKey(batch, query_begin) / kTile * kTile;
       key_begin < tile_end_key; key_begin += kTile) {
    __syncthreads();  // nobody reads the tiles of before
    LoadTile<Tiles>(geometry.Head(qkv.keys, batch, key_begin, kv_head), qkv.keys.token_stride,
                    geometry.keys - key_begin, geometry.head_size, keys);
    LoadTile<Tiles>(geometry.Head(qkv.values, batch, key_begin, kv_head), qkv.values.token_stride,
                    geometry.keys - key_begin, geometry.head_size, values);
    __syncthreads();
    const int visible = min(kTile, row_end_key - key_begin);
    float scores[Tiles::kPerLane];
    float dweights[Tiles::kPerLane];
    Dots<Tiles>(queries[row], keys, lane, scores);
    Dots<Tiles>(gradients[row], values, lane, dweights);
    for (int i = 0; i < Tiles::kPerLane; ++i) {
      const float score = geometry.Score(scores[i]);
      const float weight = expf(score - row_log_sum_exp);
      dscores[row][lane + kLanes * i] = weight * (dweights[i] - row_delta) * geometry.Slope(score);
    }
    __syncwarp();  // a row's dscores stay within its warp
    for (int c = max(0, row_first_key - key_begin); c < visible; ++c) {
      AddScaled<Tiles>(dscores[row][c], keys[c], lane, sums);
    }
  }
  if (!is_there) return;
  StoreRow<Tiles>(sums, geometry.scale, lane, geometry.head_size, adds,
                  geometry.Head(dqueries, batch, query, head));
}

// dvalue = sum over queries of p * dout, dkey = scale * sum over queries of dscore * query, over
// all heads that share the key. A block: kTile keys of one key-value head. grid: (tiles, kv_heads,
// batch).
template <typename Tiles, typename T, typename Gradient>
__global__ __launch_bounds__(Tiles::kThreads) void KeyValueGradientKernel(
    Geometry geometry, QueriesKeysValues<const T> qkv, const float* log_sum_exp, const float* delta,
    const T* dout, bool adds, TokenHeads<Gradient> dkeys, TokenHeads<Gradient> dvalues) {
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
  const int keys_left = geometry.keys - key_begin;
  const bool is_there = row < keys_left;

  LoadTile<Tiles>(geometry.Head(qkv.keys, batch, key_begin, kv_head), qkv.keys.token_stride,
                  keys_left, geometry.head_size, keys);
  LoadTile<Tiles>(geometry.Head(qkv.values, batch, key_begin, kv_head), qkv.values.token_stride,
                  keys_left, geometry.head_size, values);
  float key_sums[Tiles::kValuesPerLane] = {};
  float value_sums[Tiles::kValuesPerLane] = {};
  // The queries that see the key, and those that see one of the tile.
  const int row_seen_begin = is_there ? geometry.SeenBegin(key) : 0;
  const int row_seen_end = is_there ? geometry.SeenEnd(batch, key) : 0;
  const int tile_seen_end = geometry.SeenEnd(batch, key_begin + min(kTile, keys_left) - 1);
  const int first_head = kv_head * geometry.heads_per_kv_head();
  for (int head = first_head; head < first_head + geometry.heads_per_kv_head(); ++head) {
    for (int query_begin = geometry.SeenBegin(key_begin); query_begin < tile_seen_end;
         query_begin += kTile) {
      __syncthreads();  // nobody reads the tiles of before
      LoadTile<Tiles>(geometry.Head(qkv.queries, batch, query_begin, head),
                      qkv.queries.token_stride, geometry.queries - query_begin, geometry.head_size,
                      queries);
      LoadTile<Tiles>(dout + geometry.Out(batch, query_begin, head), geometry.out_stride(),
                      geometry.queries - query_begin, geometry.head_size, gradients);
      __syncthreads();
      const int seen_begin = max(0, row_seen_begin - query_begin);
      const int seen_end = min(kTile, row_seen_end - query_begin);
      float scores[Tiles::kPerLane];
      float dweights[Tiles::kPerLane];
      Dots<Tiles>(keys[row], queries, lane, scores);
      Dots<Tiles>(values[row], gradients, lane, dweights);
      for (int i = 0; i < Tiles::kPerLane; ++i) {
        const int c = lane + kLanes * i;
        if (c < seen_begin || c >= seen_end) continue;
        const int64_t statistic = geometry.Statistic(batch, query_begin + c, head);
        const float score = geometry.Score(scores[i]);
        const float weight = expf(score - log_sum_exp[statistic]);
        weights[row][c] = weight;
        dscores[row][c] = weight * (dweights[i] - delta[statistic]) * geometry.Slope(score);
      }
      __syncwarp();  // a row's weights stay within its warp
      for (int c = seen_begin; c < seen_end; ++c) {
        AddScaled<Tiles>(weights[row][c], gradients[c], lane, value_sums);
        AddScaled<Tiles>(dscores[row][c], queries[c], lane, key_sums);
      }
    }
  }
  if (!is_there) return;
  StoreRow<Tiles>(key_sums, geometry.scale, lane, geometry.head_size, adds,
                  geometry.Head(dkeys, batch, key, kv_head));
  StoreRow<Tiles>(value_sums, 1.0f, lane, geometry.head_size, adds,
                  geometry.Head(dvalues, batch, key, kv_head));
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

// Queues a block for each tile of `tokens` tokens, of `heads` heads of every row. A kernel must ask
// for more than 48 KiB of shared memory.
template <typename Tiles, typename... Parameters, typename... Arguments>
void LaunchTiles(const char* what, const AttentionShape& shape, int tokens, int heads, size_t bytes,
                 Queue& queue, void (*kernel)(Parameters...), const Arguments&... arguments) {
  queue.Report(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "attention: shared memory");
  const dim3 grid(static_cast<unsigned int>(CeilDivide(tokens, Tiles::kTile)),
                  static_cast<unsigned int>(heads), static_cast<unsigned int>(shape.batch));
  kernel<<<grid, Tiles::kThreads, bytes, queue.stream()>>>(arguments...);
  queue.ReportLaunch(what);
}

// Queues a warp for each row of a tensor shaped like out.
template <typename... Parameters, typename... Arguments>
void LaunchRows(const char* what, const Geometry& geometry, const AttentionShape& shape,
                Queue& queue, void (*kernel)(Parameters...), const Arguments&... arguments) {
  constexpr int kThreads = 256;
  const int64_t rows = int64_t{shape.batch} * shape.sequence_length * shape.heads;
  const int64_t blocks = CeilDivide(rows * kWarp, kThreads);
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned int>(blocks), kThreads, 0, queue.stream()>>>(geometry, rows,
                                                                             arguments...);
  queue.ReportLaunch(what);
}

}  // namespace

template <typename T>
void FlashForward(const AttentionShape& shape, const int32_t* document_begin,
                  const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                  T* out, float* log_sum_exp, Queue& queue) {
  const Geometry geometry(shape, document_begin, positions);
  WithTiling(shape.head_size, queue, [&](auto tiling) {
    using Tiles = decltype(tiling);
    constexpr size_t kSharedBytes = 3 * Tiles::kRowsBytes + Tiles::kScoresBytes;
    LaunchTiles<Tiles>("attention_forward", shape, geometry.queries, shape.heads, kSharedBytes,
                       queue, ForwardKernel<Tiles, T>, geometry, qkv, out, log_sum_exp);
  });
}

template <typename T>
void AttentionMerge(const AttentionShape& shape, const T* part_out, const float* part_log_sum_exp,
                    const QueryRange& range, bool is_first, float* out, float* log_sum_exp,
                    Stream& stream) {
  CONVENE_CHECK(shape.is_part());
  AttentionShape all = shape;
  all.sequence_length = range.all;
  LaunchRows("attention_merge", Geometry(shape, nullptr, {}), shape, stream.queue(), MergeKernel<T>,
             Geometry(all, nullptr, {}), range.first, part_out, part_log_sum_exp, is_first, out,
             log_sum_exp);
}

template <typename T, typename Gradient>
void FlashBackward(const AttentionShape& shape, const int32_t* document_begin,
                   const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                   const T* out, const float* log_sum_exp, const T* dout, bool adds,
                   const QueriesKeysValues<Gradient>& gradients, void* workspace, Queue& queue) {
  const Geometry geometry(shape, document_begin, positions);
  WithTiling(shape.head_size, queue, [&](auto tiling) {
    using Tiles = decltype(tiling);
    auto* const delta = static_cast<float*>(workspace);
    LaunchRows("attention_backward: delta", geometry, shape, queue, DeltaKernel<T>, out, dout,
               delta);

    constexpr size_t kQueryBytes = 4 * Tiles::kRowsBytes + Tiles::kScoresBytes;
    LaunchTiles<Tiles>("attention_backward: queries", shape, geometry.queries, shape.heads,
                       kQueryBytes, queue, QueryGradientKernel<Tiles, T, Gradient>, geometry, qkv,
                       log_sum_exp, delta, dout, adds, gradients.queries);
    constexpr size_t kKeyBytes = 4 * Tiles::kRowsBytes + 2 * Tiles::kScoresBytes;
    LaunchTiles<Tiles>("attention_backward: keys and values", shape, geometry.keys, shape.kv_heads,
                       kKeyBytes, queue, KeyValueGradientKernel<Tiles, T, Gradient>, geometry, qkv,
                       log_sum_exp, delta, dout, adds, gradients.keys, gradients.values);
  });
}

CONVENE_INSTANTIATE(FlashForward);
CONVENE_INSTANTIATE(AttentionMerge);
CONVENE_INSTANTIATE_PRODUCT(FlashBackward);

}  // namespace convene::worker::cuda
