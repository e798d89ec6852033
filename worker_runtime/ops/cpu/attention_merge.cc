#include "worker_runtime/ops/attention_merge.h"

#include <cstddef>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 0.1;    // an element
constexpr double kRowNanoseconds = 15;  // two exponentials and a logarithm

template <typename T>
CONVENE_CPU_CLONES void WidenRow(int count, const T* part, float* out) {
#pragma omp simd
  for (int i = 0; i < count; ++i) out[i] = Widen(part[i]);
}

template <typename T>
CONVENE_CPU_CLONES void AddRow(int count, float kept, float part_weight, const T* part,
                               float* out) {
#pragma omp simd
  for (int i = 0; i < count; ++i) out[i] = kept * out[i] + part_weight * Widen(part[i]);
}

}  // namespace

template <typename T>
void AttentionMerge(const AttentionShape& shape, const T* part_out, const float* part_log_sum_exp,
                    const QueryRange& range, bool is_first, float* out, float* log_sum_exp,
                    Stream& /*stream*/) {
  const int queries = shape.sequence_length;
  const ptrdiff_t rows = ptrdiff_t{shape.batch} * queries * shape.heads;
  const double row_nanoseconds = kRowNanoseconds + kNanoseconds * shape.head_size;
  ForPieces(row_nanoseconds * static_cast<double>(rows), rows, [=](int64_t row) {
    const ptrdiff_t head = row % shape.heads;
    const ptrdiff_t token = row / shape.heads;
    const ptrdiff_t batch = token / queries;
    const ptrdiff_t query = token % queries;
    const ptrdiff_t place = range.first + query;
    const float of_part = part_log_sum_exp[(batch * shape.heads + head) * queries + query];
    float& merged = log_sum_exp[(batch * shape.heads + head) * range.all + place];
    const T* const from = part_out + row * shape.head_size;
    float* const to = out + ((batch * range.all + place) * shape.heads + head) * shape.head_size;
    if (is_first) {
      WidenRow(shape.head_size, from, to);
      merged = of_part;
    } else {
      const MergeWeights weights(merged, of_part);
      AddRow(shape.head_size, weights.kept, weights.part, from, to);
      merged = weights.log_sum_exp;
    }
  });
}

CONVENE_INSTANTIATE(AttentionMerge);

}  // namespace convene::worker::cpu
