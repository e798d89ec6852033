#include "worker_runtime/ops/attention_sink.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "worker_runtime/ops/attention_merge.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 0.1;    // an element
constexpr double kRowNanoseconds = 15;  // exponentials and a logarithm

template <typename T>
CONVENE_CPU_CLONES void ScaleRow(int count, float factor, T* x) {
#pragma omp simd
  for (int i = 0; i < count; ++i) Narrow(factor * Widen(x[i]), &x[i]);
}

template <typename T>
CONVENE_CPU_CLONES float Dot(int count, const T* x, const T* y) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int i = 0; i < count; ++i) dot += Widen(x[i]) * Widen(y[i]);
  return dot;
}

// Calls for each head of each token: (row of out, head, place of its log-sum-exp).
template <typename Visit>
void ForHeads(const AttentionShape& shape, const Visit& visit) {
  const int64_t queries = shape.sequence_length;
  const int64_t heads = shape.heads;
  const int64_t rows = shape.batch * queries * heads;
  const double row_nanoseconds = kRowNanoseconds + kNanoseconds * shape.head_size;
  ForPieces(row_nanoseconds * static_cast<double>(rows), rows, [=](int64_t row) {
    const int64_t head = row % heads;
    const int64_t token = row / heads;
    visit(row, head, (token / queries * heads + head) * queries + token % queries);
  });
}

}  // namespace

template <typename T>
void AttentionSinkForward(const AttentionShape& shape, const T* sinks, T* out, float* log_sum_exp,
                          Stream& /*stream*/) {
  const int size = shape.head_size;
  ForHeads(shape, [=](int64_t row, int64_t head, int64_t statistic) {
    const MergeWeights weights(log_sum_exp[statistic], Widen(sinks[head]));
    ScaleRow(size, weights.kept, out + row * size);
    log_sum_exp[statistic] = weights.log_sum_exp;
  });
}

size_t AttentionSinkWorkspaceBytes(const AttentionShape& shape) {
  return sizeof(float) * shape.batch * shape.sequence_length * shape.heads;
}

template <typename T>
void AttentionSinkBackward(const AttentionShape& shape, const T* sinks, const T* out,
                           const float* log_sum_exp, const T* dout, bool adds, float* dsinks,
                           const Workspace& workspace, Stream& stream) {
  auto* const terms = workspace.As<float>(AttentionSinkWorkspaceBytes(shape));
  const int size = shape.head_size;
  ForHeads(shape, [=](int64_t row, int64_t head, int64_t statistic) {
    const float share = std::exp(Widen(sinks[head]) - log_sum_exp[statistic]);
    terms[row] = -share * Dot(size, dout + row * size, out + row * size);
  });
  cpu::BiasBackward<float>(shape.batch * shape.sequence_length, shape.heads, terms, adds, dsinks,
                           {}, stream);
}

CONVENE_INSTANTIATE(AttentionSinkForward);
CONVENE_INSTANTIATE(AttentionSinkBackward);

}  // namespace convene::worker::cpu
