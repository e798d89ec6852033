// Plain attention that holds one row of scores at a time; the contract is ops/attention.h.
// log_sum_exp is always (batch, heads, sequence_length).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "worker_runtime/ops/attention.h"

namespace convene::worker::reference {

// One head of one row of the batch: its tokens, and who sees whom. A list of positions may be in
// any order here.
template <typename Real>
struct AttentionRow {
  template <typename R>
  R* Head(const TokenHeads<R>& all, ptrdiff_t token, ptrdiff_t index) const {
    return all.data + batch * all.row_stride + token * all.token_stride + index * shape.head_size;
  }
  const Real* Query(ptrdiff_t i) const { return Head(qkv.queries, i, head); }
  const Real* Key(ptrdiff_t j) const { return Head(qkv.keys, j, kv_head()); }
  const Real* Value(ptrdiff_t j) const { return Head(qkv.values, j, kv_head()); }
  ptrdiff_t kv_head() const { return head / (shape.heads / shape.kv_heads); }
  ptrdiff_t Out(ptrdiff_t i) const {
    return ((batch * shape.sequence_length + i) * shape.heads + head) * shape.head_size;
  }
  ptrdiff_t LogSumExp(ptrdiff_t i) const {
    return (batch * shape.heads + head) * shape.sequence_length + i;
  }
  // The keys that query i sees.
  std::vector<ptrdiff_t> SeenKeys(ptrdiff_t i) const {
    const ptrdiff_t end = positions.queries == nullptr ? i : positions.queries[i];
    ptrdiff_t begin =
        document_begin == nullptr ? 0 : document_begin[batch * shape.sequence_length + i];
    if (shape.window > 0) begin = std::max<ptrdiff_t>(begin, end - shape.window + 1);
    std::vector<ptrdiff_t> keys;
    for (ptrdiff_t j = 0; j < shape.key_count(); ++j) {
      const ptrdiff_t position = positions.keys == nullptr ? j : positions.keys[j];
      if (begin <= position && position <= end) keys.push_back(j);
    }
    return keys;
  }

  const AttentionShape& shape;
  const int32_t* document_begin;  // Documents::begin
  AttentionPositions positions;
  const QueriesKeysValues<const Real>& qkv;
  ptrdiff_t batch;
  ptrdiff_t head;
};

template <typename Real>
Real AttentionDot(int count, const Real* x, const Real* y) {
  Real sum = 0;
  for (int i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

// A score from the dot product, and its slope over that.
template <typename Real>
struct AttentionScore {
  AttentionScore(const AttentionShape& shape, Real dot) {
    const Real scale = shape.score_scale > 0
                           ? static_cast<Real>(shape.score_scale)
                           : Real{1} / std::sqrt(static_cast<Real>(shape.head_size));
    const auto cap = static_cast<Real>(shape.score_cap);
    value = shape.score_cap > 0 ? cap * std::tanh(scale * dot / cap) : scale * dot;
    slope = shape.score_cap > 0 ? scale * (1 - value / cap * (value / cap)) : scale;
  }
  Real value;
  Real slope;
};

template <typename Real>
void AttentionForward(const AttentionShape& shape, const int32_t* document_begin,
                      const AttentionPositions& positions, const QueriesKeysValues<const Real>& qkv,
                      Real* out, Real* log_sum_exp) {
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int head = 0; head < shape.heads; ++head) {
      const AttentionRow<Real> row = {shape, document_begin, positions, qkv, batch, head};
      for (ptrdiff_t i = 0; i < shape.sequence_length; ++i) {
        const std::vector<ptrdiff_t> keys = row.SeenKeys(i);
        Real largest = -std::numeric_limits<Real>::infinity();
        std::vector<Real> weights;
        for (const ptrdiff_t j : keys) {
          const Real dot = AttentionDot(shape.head_size, row.Query(i), row.Key(j));
          weights.push_back(AttentionScore<Real>(shape, dot).value);
          largest = std::max(largest, weights.back());
        }
        Real sum = 0;
        for (Real& weight : weights) sum += weight = std::exp(weight - largest);
        log_sum_exp[row.LogSumExp(i)] = largest + std::log(sum);
        std::fill_n(out + row.Out(i), shape.head_size, Real{0});
        for (size_t j = 0; j < keys.size(); ++j) {
          const Real probability = weights[j] / sum;
          for (ptrdiff_t d = 0; d < shape.head_size; ++d) {
            out[row.Out(i) + d] += probability * row.Value(keys[j])[d];
          }
        }
      }
    }
  }
}

// With p = softmax(scores): dv_j += p_ij do_i, dp_ij = do_i . v_j, ds_ij = p_ij (dp_ij - sum_k p_ik
// dp_ik), and the sum is do_i . o_i. Adds to the gradients.
template <typename Real>
void AttentionBackwardAdd(const AttentionShape& shape, const int32_t* document_begin,
                          const AttentionPositions& positions,
                          const QueriesKeysValues<const Real>& qkv, const Real* out,
                          const Real* log_sum_exp, const Real* dout,
                          const QueriesKeysValues<Real>& gradients) {
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int head = 0; head < shape.heads; ++head) {
      const AttentionRow<Real> row = {shape, document_begin, positions, qkv, batch, head};
      for (ptrdiff_t i = 0; i < shape.sequence_length; ++i) {
        const Real* gradient = dout + row.Out(i);
        const Real mean = AttentionDot(shape.head_size, gradient, out + row.Out(i));
        Real* const dquery = row.Head(gradients.queries, i, head);
        for (const ptrdiff_t j : row.SeenKeys(i)) {
          const AttentionScore<Real> score(shape,
                                           AttentionDot(shape.head_size, row.Query(i), row.Key(j)));
          const Real probability = std::exp(score.value - log_sum_exp[row.LogSumExp(i)]);
          const Real dprobability = AttentionDot(shape.head_size, gradient, row.Value(j));
          const Real dscore = probability * (dprobability - mean);
          Real* const dkey = row.Head(gradients.keys, j, row.kv_head());
          Real* const dvalue = row.Head(gradients.values, j, row.kv_head());
          for (ptrdiff_t d = 0; d < shape.head_size; ++d) {
            dquery[d] += score.slope * dscore * row.Key(j)[d];
            dkey[d] += score.slope * dscore * row.Query(i)[d];
            dvalue[d] += probability * gradient[d];
          }
        }
      }
    }
  }
}

}  // namespace convene::worker::reference
