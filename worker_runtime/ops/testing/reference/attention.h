// Plain causal attention that holds one row of scores at a time; the contract is ops/attention.h.
// log_sum_exp is always (batch, heads, sequence_length).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/ops/attention.h"

namespace convene::worker::reference {

// Where the heads of a token stand in qkv.
struct AttentionRow {
  AttentionRow(const AttentionShape& shape, ptrdiff_t batch, ptrdiff_t head)
      : shape(shape), batch(batch), head(head), kv_head(head / (shape.heads / shape.kv_heads)) {}
  ptrdiff_t Query(ptrdiff_t position) const { return Place(position, head); }
  ptrdiff_t Key(ptrdiff_t position) const { return Place(position, shape.heads + kv_head); }
  ptrdiff_t Value(ptrdiff_t position) const {
    return Place(position, shape.heads + shape.kv_heads + kv_head);
  }
  ptrdiff_t Out(ptrdiff_t position) const {
    return ((batch * shape.sequence_length + position) * shape.heads + head) * shape.head_size;
  }
  ptrdiff_t FirstKey(const int32_t* document_begin, ptrdiff_t position) const {
    return document_begin == nullptr ? 0 : document_begin[batch * shape.sequence_length + position];
  }
  ptrdiff_t LogSumExp(ptrdiff_t position) const {
    return (batch * shape.heads + head) * shape.sequence_length + position;
  }

  const AttentionShape& shape;
  const ptrdiff_t batch, head, kv_head;

 private:
  ptrdiff_t Place(ptrdiff_t position, ptrdiff_t part) const {
    return (batch * shape.sequence_length + position) * shape.qkv_width() + part * shape.head_size;
  }
};

template <typename Real>
Real AttentionDot(int count, const Real* x, const Real* y) {
  Real sum = 0;
  for (int i = 0; i < count; ++i) sum += x[i] * y[i];
  return sum;
}

// `document_begin` is Documents::begin.
template <typename Real>
void AttentionForward(const AttentionShape& shape, const Real* qkv, Real* out, Real* log_sum_exp,
                      const int32_t* document_begin = nullptr) {
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(shape.head_size));
  std::vector<Real> weights(static_cast<size_t>(shape.sequence_length));
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int head = 0; head < shape.heads; ++head) {
      const AttentionRow row(shape, batch, head);
      for (ptrdiff_t i = 0; i < shape.sequence_length; ++i) {
        const ptrdiff_t first = row.FirstKey(document_begin, i);
        for (ptrdiff_t j = first; j <= i; ++j) {
          weights[j] = scale * AttentionDot(shape.head_size, qkv + row.Query(i), qkv + row.Key(j));
        }
        const Real largest = *std::max_element(weights.begin() + first, weights.begin() + i + 1);
        Real sum = 0;
        for (ptrdiff_t j = first; j <= i; ++j) sum += weights[j] = std::exp(weights[j] - largest);
        log_sum_exp[row.LogSumExp(i)] = largest + std::log(sum);
        for (ptrdiff_t d = 0; d < shape.head_size; ++d) {
          Real value = 0;
          for (ptrdiff_t j = first; j <= i; ++j) value += weights[j] / sum * qkv[row.Value(j) + d];
          out[row.Out(i) + d] = value;
        }
      }
    }
  }
}

// With p = softmax(scores): dv_j += p_ij do_i, dp_ij = do_i . v_j, ds_ij = p_ij (dp_ij - sum_k p_ik
// dp_ik), and the sum is do_i . o_i.
template <typename Real>
void AttentionBackward(const AttentionShape& shape, const Real* qkv, const Real* out,
                       const Real* log_sum_exp, const Real* dout, Real* dqkv,
                       const int32_t* document_begin = nullptr) {
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(shape.head_size));
  const ptrdiff_t tokens = ptrdiff_t{shape.batch} * shape.sequence_length;
  std::fill_n(dqkv, tokens * shape.qkv_width(), Real{0});
  for (int batch = 0; batch < shape.batch; ++batch) {
    for (int head = 0; head < shape.heads; ++head) {
      const AttentionRow row(shape, batch, head);
      for (ptrdiff_t i = 0; i < shape.sequence_length; ++i) {
        const Real* query = qkv + row.Query(i);
        const Real* gradient = dout + row.Out(i);
        const Real mean = AttentionDot(shape.head_size, gradient, out + row.Out(i));
        for (ptrdiff_t j = row.FirstKey(document_begin, i); j <= i; ++j) {
          const Real* key = qkv + row.Key(j);
          const Real probability = std::exp(scale * AttentionDot(shape.head_size, query, key) -
                                            log_sum_exp[row.LogSumExp(i)]);
          const Real dprobability = AttentionDot(shape.head_size, gradient, qkv + row.Value(j));
          const Real dscore = probability * (dprobability - mean);
          for (ptrdiff_t d = 0; d < shape.head_size; ++d) {
            dqkv[row.Query(i) + d] += scale * dscore * key[d];
            dqkv[row.Key(j) + d] += scale * dscore * query[d];
            dqkv[row.Value(j) + d] += probability * gradient[d];
          }
        }
      }
    }
  }
}

}  // namespace convene::worker::reference
