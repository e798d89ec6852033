// Blocks of queries against blocks of keys. A task is one key-value head of one sequence with all
// query heads that share it: tasks share no output, so threads need no order among them. Within a
// block, rows go in chunks, and each chunk is computed from the first to the last key that one of
// its rows may see: neither the causal half that is masked nor other documents cost much.
#include "worker_runtime/ops/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tools/base/check.h"
#include "worker_runtime/ops/cpu/block_product.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/query_attention.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/softmax.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr int kQueryBlock = 48;
constexpr int kKeyBlock = 128;
constexpr int kChunk = 12;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One thread's part of the workspace. "Padded": rows of padded_head_size floats, zeros at the end.
// "Transposed": (head_size, padded_length), so that a row runs over the keys.
struct Scratch {
  float* keys_transposed;
  float* values_transposed;
  float* keys;  // padded, as are all that follow up to `queries_gradient`
  float* values;
  float* keys_gradient;
  float* values_gradient;
  float* queries;  // one block, times 1/sqrt(head_size)
  float* out;      // one block: of the output, or of its gradient
  float* queries_gradient;
  float* scores;           // (kQueryBlock, kKeyBlock), then their exponentials
  float* scores_gradient;  // (kQueryBlock, kKeyBlock)
  float* row_max;          // (kQueryBlock), as are the next
  float* row_sum;
  int32_t* first_keys;  // (sequence_length), as are the next: see Task
  int32_t* end_keys;
  size_t size;

  Scratch(const AttentionShape& shape, float* base) {
    const size_t padded_head_size = static_cast<size_t>(RoundUpToVector(shape.head_size));
    const size_t padded_length = static_cast<size_t>(RoundUpToVector(shape.key_count()));
    const size_t sequence = padded_length * padded_head_size;
    const size_t block = kQueryBlock * padded_head_size;
    size = 0;
    const auto take = [&](size_t count) {
      float* place = base == nullptr ? nullptr : base + size;
      size += count;
      return place;
    };
    keys_transposed = take(sequence);
    values_transposed = take(sequence);
    keys = take(sequence);
    values = take(sequence);
    keys_gradient = take(sequence);
    values_gradient = take(sequence);
    queries = take(block);
    out = take(block);
    queries_gradient = take(block);
    scores = take(size_t{kQueryBlock} * kKeyBlock);
    scores_gradient = take(size_t{kQueryBlock} * kKeyBlock);
    row_max = take(kQueryBlock);
    row_sum = take(kQueryBlock);
    static_assert(sizeof(int32_t) == sizeof(float));
    const auto queries = static_cast<size_t>(RoundUpToVector(shape.sequence_length));
    first_keys = reinterpret_cast<int32_t*>(take(queries));
    end_keys = reinterpret_cast<int32_t*>(take(queries));
  }
};

// How many of a rising list of positions (null: 0, 1, 2, ...) come before `position`.
int CountBefore(const int32_t* positions, int count, int position) {
  if (positions == nullptr) return std::clamp(position, 0, count);
  return static_cast<int>(std::lower_bound(positions, positions + count, position) - positions);
}

// One key-value head of one row.
struct Task {
  // Fills `scratch.first_keys` and `end_keys`.
  Task(const AttentionShape& shape, const Documents& documents, const AttentionPositions& positions,
       int index, const Scratch& scratch)
      : batch_index(index / shape.kv_heads),
        kv_head(index % shape.kv_heads),
        heads(shape.heads),
        group_size(shape.heads / shape.kv_heads),
        queries(shape.sequence_length),
        keys(shape.key_count()),
        head_size(shape.head_size),
        padded_head_size(RoundUpToVector(shape.head_size)),
        padded_keys(RoundUpToVector(keys)),
        out_stride(static_cast<ptrdiff_t>(shape.heads) * shape.head_size),
        first_query(static_cast<ptrdiff_t>(batch_index) * shape.sequence_length),
        scale(shape.scale()),
        cap(shape.score_cap),
        first_keys(scratch.first_keys),
        end_keys(scratch.end_keys) {
    for (int i = 0; i < queries; ++i) {
      const int position = positions.queries == nullptr ? i : positions.queries[i];
      int begin = documents.begin == nullptr ? 0 : documents.begin[first_query + i];
      if (shape.window > 0) begin = std::max(begin, position - shape.window + 1);
      scratch.first_keys[i] = CountBefore(positions.keys, keys, begin);
      scratch.end_keys[i] = CountBefore(positions.keys, keys, position + 1);
    }
  }

  template <typename T>
  T* Head(const TokenHeads<T>& all, int head) const {
    return all.data + batch_index * all.row_stride + ptrdiff_t{head} * head_size;
  }
  // Of a query head, in a tensor shaped like log_sum_exp.
  ptrdiff_t Statistics(int head) const { return (ptrdiff_t{batch_index} * heads + head) * queries; }

  int batch_index, kv_head, heads, group_size;
  int queries, keys;  // of the row
  int head_size, padded_head_size, padded_keys;
  ptrdiff_t out_stride;
  ptrdiff_t first_query;  // of the row, among all queries
  float scale;
  float cap;  // AttentionShape::score_cap
  // Query i sees the keys [first_keys[i], end_keys[i]) and no other. Neither bound falls from one
  // query to the next, as positions rise.
  const int32_t* first_keys;
  const int32_t* end_keys;
};

// Columns of a packed block are counted in whole vectors, from the first as well.
int RoundDownToVector(int count) { return count / kVectorFloats * kVectorFloats; }

int TaskCount(const AttentionShape& shape) { return shape.batch * shape.kv_heads; }

// The most threads that have a task.
int ScratchCount(const AttentionShape& shape) {
  return std::max(1, std::min(omp_get_max_threads(), TaskCount(shape)));
}

// Of a forward pass, if each query sees all keys before it.
double Nanoseconds(const AttentionShape& shape) {
  constexpr double kScore = 2.5;
  constexpr double kElement = 0.02;    // of a query times a key, and of a probability times a value
  constexpr double kScoreInPlace = 6;  // of a query that is alone
  const double queries =
      static_cast<double>(TaskCount(shape)) * shape.heads / shape.kv_heads * shape.sequence_length;
  const double keys = shape.sequence_length == 1 ? shape.key_count() : shape.key_count() / 2.0;
  const double of_score = shape.sequence_length == 1 ? kScoreInPlace : kScore;
  return queries * keys * (of_score + kElement * shape.head_size);
}

// to: (rows, padded), from: rows of `width` elements, `stride` apart; times `factor`.
template <typename T>
CONVENE_CPU_CLONES void Pack(int rows, int width, int padded, float factor, const T* from,
                             ptrdiff_t stride, float* to) {
  for (int row = 0; row < rows; ++row) {
    const T* source = from + row * stride;
    float* target = to + static_cast<ptrdiff_t>(row) * padded;
    for (int i = 0; i < width; ++i) target[i] = Widen(source[i]) * factor;
    for (int i = width; i < padded; ++i) target[i] = 0;
  }
}

// kAdds: to what `to` holds.
template <bool kAdds = false, typename T>
CONVENE_CPU_CLONES void Unpack(int rows, int width, int padded, float factor, const float* from,
                               T* to, ptrdiff_t stride) {
  for (int row = 0; row < rows; ++row) {
    const float* source = from + static_cast<ptrdiff_t>(row) * padded;
    T* target = to + row * stride;
    for (int i = 0; i < width; ++i) {
      const float value = source[i] * factor;
      Narrow(kAdds ? Widen(target[i]) + value : value, &target[i]);
    }
  }
}

template <typename T>
CONVENE_CPU_CLONES float Dot(int count, const T* x, const T* y) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < count; ++i) sum += Widen(x[i]) * Widen(y[i]);
  return sum;
}

// to: (width, padded_rows).
template <typename T>
void PackTransposed(int rows, int width, int padded_rows, const T* from, ptrdiff_t stride,
                    float* to) {
  constexpr int kTile = 16;
  for (int begin = 0; begin < padded_rows; begin += kTile) {
    const int here = std::max(0, std::min(kTile, rows - begin));
    for (int i = 0; i < width; ++i) {
      float* target = to + static_cast<ptrdiff_t>(i) * padded_rows + begin;
      const T* source = from + begin * stride + i;
      for (int row = 0; row < here; ++row) target[row] = Widen(source[row * stride]);
      for (int row = here; row < kTile; ++row) target[row] = 0;
    }
  }
}

// probabilities: scores in, capped where kCaps, e^(score - log_sum_exp) out. gradient: the
// probabilities' gradient in, that of the scores before the cap out. A hidden score, -infinity, has
// the slope 0.
template <bool kCaps>
CONVENE_CPU_CLONES void SoftmaxGradientRow(int count, float log_sum_exp, float mean_gradient,
                                           float cap, float* probabilities, float* gradient) {
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    float slope = 1.0f;
    if constexpr (kCaps) {
      const float bounded = probabilities[i] < -cap ? -cap : probabilities[i];
      slope = 1.0f - bounded / cap * (bounded / cap);
    }
    const float probability = Exp(probabilities[i] - log_sum_exp);
    probabilities[i] = probability;
    gradient[i] = probability * (gradient[i] - mean_gradient) * slope;
  }
}

// One block of queries against one block of keys.
struct Block {
  int first_query;
  int queries;
  int first_key;
  int keys;

  // The query `row` may see the block's keys [HiddenKeys, VisibleKeys): of those there are.
  int HiddenKeys(const Task& task, int row) const {
    return std::max(0, task.first_keys[first_query + row] - first_key);
  }
  // May be <= 0, or more than the block has keys.
  int VisibleKeys(const Task& task, int row) const {
    return task.end_keys[first_query + row] - first_key;
  }
};

// Some rows of a block's queries, and the block's keys that one of these rows may see.
struct Rows {
  Rows(const Task& task, const Block& block, int first_row)
      : first(first_row),
        count(std::min(kChunk, block.queries - first)),
        begin(RoundDownToVector(block.HiddenKeys(task, first))),
        end(std::min(block.keys, block.VisibleKeys(task, first + count - 1))),
        padded_end(RoundUpToVector(std::max(end, 0))) {}

  bool IsEmpty() const { return end <= begin; }
  int padded_keys() const { return padded_end - begin; }

  int first;
  int count;
  int begin;  // a whole number of vectors
  int end;    // may be <= begin
  int padded_end;
};

// The rows' keys that the query `row` sees; the bounds are the same when it sees none.
struct VisibleRange {
  VisibleRange(const Task& task, const Block& block, const Rows& rows, int row)
      : begin(std::clamp(block.HiddenKeys(task, row), rows.begin, rows.end)),
        end(std::clamp(block.VisibleKeys(task, row), begin, rows.end)) {}

  bool IsEmpty() const { return begin == end; }

  int begin;
  int end;
};

// Takes the keys that the row does not see out of its scores (kKeyBlock).
void HideKeys(const Rows& rows, const VisibleRange& visible, float* scores) {
  std::fill(scores + rows.begin, scores + visible.begin, kMinusInfinity);
  std::fill(scores + visible.end, scores + rows.padded_end, kMinusInfinity);
}

// Rows `rows` of product (queries, kKeyBlock) = left (queries, head_size) right (head_size,
// keys), for the rows' keys.
void MultiplyWithKeys(const Task& task, const Block& block, const Rows& rows, const float* left,
                      const float* right, float* product) {
  BlockProduct(rows.count, rows.padded_keys(), task.head_size,
               {left + rows.first * task.padded_head_size, task.padded_head_size, 1},
               right + block.first_key + rows.begin, task.padded_keys, false,
               product + rows.first * kKeyBlock + rows.begin, kKeyBlock);
}

void ForwardBlock(const Task& task, const Block& block, const Scratch& scratch) {
  const int padded_head_size = task.padded_head_size;
  for (int first = 0; first < block.queries; first += kChunk) {
    const Rows rows(task, block, first);
    if (rows.IsEmpty()) continue;
    float* scores = scratch.scores + first * kKeyBlock;
    float* out = scratch.out + first * padded_head_size;
    MultiplyWithKeys(task, block, rows, scratch.queries, scratch.keys_transposed, scratch.scores);
    for (int row = 0; row < rows.count; ++row) {
      float* const row_scores = scores + row * kKeyBlock;
      const VisibleRange visible(task, block, rows, first + row);
      if (visible.IsEmpty()) {  // perhaps there is no maximum yet
        std::fill(row_scores + rows.begin, row_scores + rows.padded_end, 0.0f);
        continue;
      }
      if (task.cap > 0) CapRow(rows.padded_keys(), task.cap, row_scores + rows.begin);
      HideKeys(rows, visible, row_scores);
      SoftmaxRow(rows.padded_keys(), padded_head_size, row_scores + rows.begin,
                 scratch.row_max + first + row, scratch.row_sum + first + row,
                 out + row * padded_head_size);
    }
    BlockProduct(
        rows.count, padded_head_size, rows.end - rows.begin, {scores + rows.begin, kKeyBlock, 1},
        scratch.values + static_cast<ptrdiff_t>(block.first_key + rows.begin) * padded_head_size,
        padded_head_size, true, out, padded_head_size);
  }
}

// The only query of a head.
template <typename T>
void ForwardQuery(const Task& task, int head, const QueriesKeysValues<const T>& qkv,
                  const Scratch& scratch) {
  Pack(1, task.head_size, task.padded_head_size, task.scale, task.Head(qkv.queries, head),
       qkv.queries.token_stride, scratch.queries);
  const ptrdiff_t first = task.first_keys[0];
  QueryAttention<T>(
      {.keys = task.end_keys[0] - task.first_keys[0], .head_size = task.head_size, .cap = task.cap},
      scratch.queries,
      {.keys = task.Head(qkv.keys, task.kv_head) + first * qkv.keys.token_stride,
       .key_stride = qkv.keys.token_stride,
       .values = task.Head(qkv.values, task.kv_head) + first * qkv.values.token_stride,
       .value_stride = qkv.values.token_stride},
      scratch.scores, scratch.row_max, scratch.row_sum, scratch.out);
}

// `queries` of a head from `first` on, by blocks of packed keys.
template <typename T>
void ForwardQueries(const Task& task, int head, int first, int queries,
                    const QueriesKeysValues<const T>& qkv, const Scratch& scratch) {
  Pack(queries, task.head_size, task.padded_head_size, task.scale,
       task.Head(qkv.queries, head) + first * qkv.queries.token_stride, qkv.queries.token_stride,
       scratch.queries);
  std::fill_n(scratch.out, queries * task.padded_head_size, 0.0f);
  std::fill_n(scratch.row_max, queries, kMinusInfinity);
  std::fill_n(scratch.row_sum, queries, 0.0f);
  const int end = task.end_keys[first + queries - 1];
  for (int key = RoundDownToVector(task.first_keys[first]); key < end; key += kKeyBlock) {
    ForwardBlock(task, {first, queries, key, std::min(kKeyBlock, end - key)}, scratch);
  }
}

template <typename T>
void ForwardTask(const Task& task, const QueriesKeysValues<const T>& qkv, T* out,
                 float* log_sum_exp, const Scratch& scratch) {
  const bool is_one = task.queries == 1;
  if (!is_one) {
    PackTransposed(task.keys, task.head_size, task.padded_keys, task.Head(qkv.keys, task.kv_head),
                   qkv.keys.token_stride, scratch.keys_transposed);
    Pack(task.keys, task.head_size, task.padded_head_size, 1.0f,
         task.Head(qkv.values, task.kv_head), qkv.values.token_stride, scratch.values);
  }
  for (int member = 0; member < task.group_size; ++member) {
    const int head = task.kv_head * task.group_size + member;
    float* const head_log_sum_exp = log_sum_exp + task.Statistics(head);
    for (int first = 0; first < task.queries; first += kQueryBlock) {
      const int queries = std::min(kQueryBlock, task.queries - first);
      if (is_one) {
        ForwardQuery(task, head, qkv, scratch);
      } else {
        ForwardQueries(task, head, first, queries, qkv, scratch);
      }
      for (int row = 0; row < queries; ++row) {
        const float sum = scratch.row_sum[row];  // 0 when the query sees no key
        Unpack(1, task.head_size, task.padded_head_size, sum == 0.0f ? 0.0f : 1.0f / sum,
               scratch.out + row * task.padded_head_size,
               out + (task.first_query + first + row) * task.out_stride +
                   static_cast<ptrdiff_t>(head) * task.head_size,
               task.out_stride);
        head_log_sum_exp[first + row] = scratch.row_max[row] + std::log(sum);
      }
    }
  }
}

// Recomputes the block's probabilities, then: dS = P * (dO V^T - mean), dQ += dS K, dK += dS^T Q,
// dV += P^T dO.
void BackwardBlock(const Task& task, const Block& block, const float* log_sum_exp,
                   const Scratch& scratch) {
  const int padded_head_size = task.padded_head_size;
  const ptrdiff_t first_key_offset = static_cast<ptrdiff_t>(block.first_key) * padded_head_size;
  for (int first = 0; first < block.queries; first += kChunk) {
    const Rows rows(task, block, first);
    float* scores = scratch.scores + first * kKeyBlock;
    float* gradient = scratch.scores_gradient + first * kKeyBlock;
    if (rows.IsEmpty()) {  // the products over rows below may pass over rows that see nothing
      for (int row = 0; row < rows.count; ++row) {
        std::fill_n(scores + row * kKeyBlock, block.keys, 0.0f);
        std::fill_n(gradient + row * kKeyBlock, block.keys, 0.0f);
      }
      continue;
    }
    MultiplyWithKeys(task, block, rows, scratch.queries, scratch.keys_transposed, scratch.scores);
    MultiplyWithKeys(task, block, rows, scratch.out, scratch.values_transposed,
                     scratch.scores_gradient);
    for (int row = 0; row < rows.count; ++row) {
      float* row_scores = scores + row * kKeyBlock;
      float* row_gradient = gradient + row * kKeyBlock;
      const VisibleRange visible(task, block, rows, first + row);
      if (!visible.IsEmpty()) {
        if (task.cap > 0) CapRow(rows.padded_keys(), task.cap, row_scores + rows.begin);
        HideKeys(rows, visible, row_scores);
        const auto gradient_row =
            task.cap > 0 ? SoftmaxGradientRow<true> : SoftmaxGradientRow<false>;
        gradient_row(rows.padded_keys(), log_sum_exp[first + row], scratch.row_sum[first + row],
                     task.cap, row_scores + rows.begin, row_gradient + rows.begin);
      }
      // The products over rows below reach chunks of keys beyond what this chunk of rows sees; of
      // a row that sees none, log_sum_exp may be -infinity.
      const int begin = visible.IsEmpty() ? kKeyBlock : rows.begin;
      const int end = visible.IsEmpty() ? kKeyBlock : rows.padded_end;
      for (float* const values : {row_scores, row_gradient}) {
        std::fill(values, values + begin, 0.0f);
        std::fill(values + end, values + kKeyBlock, 0.0f);
      }
    }
    BlockProduct(
        rows.count, padded_head_size, rows.end - rows.begin, {gradient + rows.begin, kKeyBlock, 1},
        scratch.keys + first_key_offset + static_cast<ptrdiff_t>(rows.begin) * padded_head_size,
        padded_head_size, true, scratch.queries_gradient + first * padded_head_size,
        padded_head_size);
  }
  int row = 0;
  for (int first = 0; first < block.keys; first += kChunk) {
    const int keys = std::min(kChunk, block.keys - first);
    // From the first query that sees the chunk's first key to the last that sees its last.
    while (row < block.queries && block.VisibleKeys(task, row) <= first) ++row;
    int end = block.queries;
    while (end > row && block.HiddenKeys(task, end - 1) >= first + keys) --end;
    if (end <= row) continue;
    const int rows = end - row;
    const ptrdiff_t offset = first_key_offset + static_cast<ptrdiff_t>(first) * padded_head_size;
    BlockProduct(keys, padded_head_size, rows,
                 {scratch.scores_gradient + row * kKeyBlock + first, 1, kKeyBlock},
                 scratch.queries + row * padded_head_size, padded_head_size, true,
                 scratch.keys_gradient + offset, padded_head_size);
    BlockProduct(keys, padded_head_size, rows,
                 {scratch.scores + row * kKeyBlock + first, 1, kKeyBlock},
                 scratch.out + row * padded_head_size, padded_head_size, true,
                 scratch.values_gradient + offset, padded_head_size);
  }
}

// Writes the gradients, or adds them: kAdds.
template <bool kAdds, typename T, typename Gradient>
void BackwardTask(const Task& task, const QueriesKeysValues<const T>& qkv, const T* out,
                  const float* log_sum_exp, const T* dout,
                  const QueriesKeysValues<Gradient>& gradients, const Scratch& scratch) {
  PackTransposed(task.keys, task.head_size, task.padded_keys, task.Head(qkv.keys, task.kv_head),
                 qkv.keys.token_stride, scratch.keys_transposed);
  PackTransposed(task.keys, task.head_size, task.padded_keys, task.Head(qkv.values, task.kv_head),
                 qkv.values.token_stride, scratch.values_transposed);
  Pack(task.keys, task.head_size, task.padded_head_size, 1.0f, task.Head(qkv.keys, task.kv_head),
       qkv.keys.token_stride, scratch.keys);
  const ptrdiff_t keys_size = static_cast<ptrdiff_t>(task.keys) * task.padded_head_size;
  std::fill_n(scratch.keys_gradient, keys_size, 0.0f);
  std::fill_n(scratch.values_gradient, keys_size, 0.0f);
  for (int member = 0; member < task.group_size; ++member) {
    const int head = task.kv_head * task.group_size + member;
    const float* const head_log_sum_exp = log_sum_exp + task.Statistics(head);
    for (int first = 0; first < task.queries; first += kQueryBlock) {
      const int queries = std::min(kQueryBlock, task.queries - first);
      const ptrdiff_t out_offset = (task.first_query + first) * task.out_stride +
                                   static_cast<ptrdiff_t>(head) * task.head_size;
      Pack(queries, task.head_size, task.padded_head_size, task.scale,
           task.Head(qkv.queries, head) + first * qkv.queries.token_stride,
           qkv.queries.token_stride, scratch.queries);
      Pack(queries, task.head_size, task.padded_head_size, 1.0f, dout + out_offset, task.out_stride,
           scratch.out);
      // The mean of the probabilities' gradient under the probabilities is out . dout.
      for (int row = 0; row < queries; ++row) {
        const ptrdiff_t offset = out_offset + row * task.out_stride;
        scratch.row_sum[row] = Dot(task.head_size, out + offset, dout + offset);
      }
      std::fill_n(scratch.queries_gradient, queries * task.padded_head_size, 0.0f);
      const int end = task.end_keys[first + queries - 1];
      for (int key = RoundDownToVector(task.first_keys[first]); key < end; key += kKeyBlock) {
        BackwardBlock(task, {first, queries, key, std::min(kKeyBlock, end - key)},
                      head_log_sum_exp + first, scratch);
      }
      Unpack<kAdds>(queries, task.head_size, task.padded_head_size, task.scale,
                    scratch.queries_gradient,
                    task.Head(gradients.queries, head) + first * gradients.queries.token_stride,
                    gradients.queries.token_stride);
    }
  }
  Unpack<kAdds>(task.keys, task.head_size, task.padded_head_size, 1.0f, scratch.keys_gradient,
                task.Head(gradients.keys, task.kv_head), gradients.keys.token_stride);
  Unpack<kAdds>(task.keys, task.head_size, task.padded_head_size, 1.0f, scratch.values_gradient,
                task.Head(gradients.values, task.kv_head), gradients.values.token_stride);
}

// Calls run(task, scratch) for each task.
template <typename Run>
void ForTasks(const AttentionShape& shape, const Documents& documents,
              const AttentionPositions& positions, const Workspace& workspace, const Run& run) {
  CONVENE_CHECK(shape.packed == (documents.begin != nullptr));
  CONVENE_CHECK(shape.is_part() || (positions.queries == nullptr && positions.keys == nullptr));
  const size_t scratch_size = Scratch(shape, nullptr).size;
  const int scratches = ScratchCount(shape);
  float* const memory = workspace.As<float>(scratch_size * sizeof(float) * scratches);
  const int64_t tasks = TaskCount(shape);
  const double nanoseconds = Nanoseconds(shape);
  // A share of the tasks for each thread that has one: they use one scratch after the other.
  const bool is_shared = TeamNow(nanoseconds, tasks) > 1;
  const int shares = is_shared ? scratches : 1;
  ForPieces(nanoseconds, shares, [&](int64_t share) {
    const Scratch scratch(shape, memory + scratch_size * share);
    const int64_t end = (share + 1) * tasks / shares;
    for (int64_t index = share * tasks / shares; index < end; ++index) {
      run(Task(shape, documents, positions, static_cast<int>(index), scratch), scratch);
    }
  });
}

}  // namespace

template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape) {
  return Scratch(shape, nullptr).size * sizeof(float) * static_cast<size_t>(ScratchCount(shape));
}

template <typename T>
void AttentionForward(const AttentionShape& shape, const Documents& documents,
                      const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                      T* out, float* log_sum_exp, const Workspace& workspace, Stream& /*stream*/) {
  ForTasks(shape, documents, positions, workspace, [&](const Task& task, const Scratch& scratch) {
    ForwardTask(task, qkv, out, log_sum_exp, scratch);
  });
}

template <typename T, typename Gradient>
void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                       const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                       const T* out, const float* log_sum_exp, const T* dout, bool adds,
                       const QueriesKeysValues<Gradient>& gradients, const Workspace& workspace,
                       Stream& /*stream*/) {
  const auto backward = adds ? BackwardTask<true, T, Gradient> : BackwardTask<false, T, Gradient>;
  ForTasks(shape, documents, positions, workspace, [&](const Task& task, const Scratch& scratch) {
    backward(task, qkv, out, log_sum_exp, dout, gradients, scratch);
  });
}

CONVENE_INSTANTIATE(AttentionWorkspaceBytes);
CONVENE_INSTANTIATE(AttentionForward);
CONVENE_INSTANTIATE_PRODUCT(AttentionBackward);

}  // namespace convene::worker::cpu
