// Plain attention sinks; the contract is ops/attention_sink.h. log_sum_exp is always (batch, heads,
// sequence_length).
#pragma once

#include <cmath>
#include <cstddef>

#include "worker_runtime/ops/testing/reference/attention.h"

namespace convene::worker::reference {

// Calls for each query: (head, its place in log_sum_exp, in out).
template <typename Visit>
void ForQueries(const AttentionShape& shape, const Visit& visit) {
  for (ptrdiff_t batch = 0; batch < shape.batch; ++batch) {
    for (ptrdiff_t head = 0; head < shape.heads; ++head) {
      for (ptrdiff_t i = 0; i < shape.sequence_length; ++i) {
        visit(head, (batch * shape.heads + head) * shape.sequence_length + i,
              ((batch * shape.sequence_length + i) * shape.heads + head) * shape.head_size);
      }
    }
  }
}

template <typename Real>
void AttentionSinkForward(const AttentionShape& shape, const Real* sinks, Real* out,
                          Real* log_sum_exp) {
  ForQueries(shape, [&](ptrdiff_t head, ptrdiff_t statistic, ptrdiff_t first) {
    const Real of_keys = log_sum_exp[statistic];
    const Real larger = std::max(of_keys, sinks[head]);
    const Real keys = std::exp(of_keys - larger);
    const Real sum = keys + std::exp(sinks[head] - larger);
    for (int d = 0; d < shape.head_size; ++d) out[first + d] *= keys / sum;
    log_sum_exp[statistic] = larger + std::log(sum);
  });
}

template <typename Real>
void AttentionSinkBackwardAdd(const AttentionShape& shape, const Real* sinks, const Real* out,
                              const Real* log_sum_exp, const Real* dout, Real* dsinks) {
  ForQueries(shape, [&](ptrdiff_t head, ptrdiff_t statistic, ptrdiff_t first) {
    dsinks[head] -= std::exp(sinks[head] - log_sum_exp[statistic]) *
                    AttentionDot(shape.head_size, dout + first, out + first);
  });
}

}  // namespace convene::worker::reference
