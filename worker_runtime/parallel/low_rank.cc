#include "worker_runtime/parallel/low_rank.h"

#include <cstdint>

#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/grouped_matmul.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker {
namespace {

template <typename T>
DropoutMask MaskFrom(const LowRank<T>& adapter, int first_row) {
  DropoutMask mask = adapter.dropout;
  mask.tokens += first_row;
  return mask;
}

// The input of A: x, or x with some numbers 0.
template <typename T>
const T* Dropped(const LinearShape& s, const LowRank<T>& adapter, int first_row, const T* x,
                 Stream& stream) {
  if (!adapter.dropout.is_on()) return x;
  Dropout(s.rows, s.in, MaskFrom(adapter, first_row), /*adds=*/false, x, adapter.dropped, stream);
  return adapter.dropped;
}

// c (rows, n) = op(b) of rows (rows, k), + beta c: of experts each group of rows by its own b.
template <typename T>
void MultiplyRows(const LowRank<T>& adapter, Transpose transpose_b, int count, int n, int k,
                  const T* rows, const T* b, float beta, T* c, Stream& stream) {
  if (adapter.groups.empty()) {
    return MatMul(Transpose::kNo, transpose_b, count, n, k, rows, b, beta, c, stream);
  }
  GroupedMatMul(transpose_b, adapter.groups, n, k, rows, b, beta, c, stream);
}

// c (m, n) = a^T b, of a (rows, m) and b (rows, n), + beta c: of experts each its own.
template <typename T>
void FactorGradient(const LowRank<T>& adapter, int count, int m, int n, const T* a, const T* b,
                    float beta, float* c, Stream& stream) {
  if (adapter.groups.empty()) {
    return MatMul(Transpose::kYes, Transpose::kNo, m, n, count, a, b, beta, c, stream);
  }
  GroupedWeightGradient(adapter.groups, m, n, a, b, beta, c, stream);
}

template <typename T>
int64_t BRows(const LowRank<T>& adapter) {
  return adapter.parts.back().first_b_row + adapter.parts.back().out;
}

// Calls copy(rows, of B, of what is spread) for each run of B's rows.
template <typename T, typename Copy>
void ForParts(const LinearShape& s, const LowRank<T>& adapter, const Copy& copy) {
  if (BRows(adapter) == s.out && adapter.ranks == adapter.rank) {  // B as it is
    return copy(int64_t{adapter.layers()} * s.out, 0, 0);
  }
  for (int64_t layer = 0; layer < adapter.layers(); ++layer) {
    for (const LowRankPart& part : adapter.parts) {
      copy(part.out, (layer * BRows(adapter) + part.first_b_row) * adapter.rank,
           (layer * s.out + part.first_out) * adapter.ranks + part.first_rank);
    }
  }
}

}  // namespace

template <typename T>
void SpreadLowRank(const LinearShape& s, const LowRank<T>& adapter, Stream& stream) {
  if (!adapter.is_on()) return;
  const int64_t count = int64_t{adapter.layers()} * s.out * adapter.ranks;
  adapter.device->Zero(adapter.spread, count * sizeof(T), stream);
  ForParts(s, adapter, [&](int64_t rows, int64_t of_b, int64_t of_spread) {
    CopyRows(rows, adapter.rank, adapter.b + of_b, adapter.rank, adapter.spread + of_spread,
             adapter.ranks, stream);
  });
  ScaleInPlace(count, adapter.scale, adapter.spread, stream);
}

template <typename T>
void AddLowRank(const LinearShape& s, const LowRank<T>& adapter, int first_row, const T* x, T* y,
                Stream& stream) {
  if (!adapter.is_on()) return;
  x = Dropped(s, adapter, first_row, x, stream);
  MultiplyRows(adapter, Transpose::kYes, s.rows, adapter.ranks, s.in, x, adapter.a, 0,
               adapter.inner, stream);
  MultiplyRows(adapter, Transpose::kYes, s.rows, s.out, adapter.ranks, adapter.inner,
               adapter.spread, 1, y, stream);
}

template <typename T>
void LowRankInnerGradient(const LinearShape& s, const LowRank<T>& adapter, const T* dy,
                          Stream& stream) {
  if (!adapter.is_on()) return;
  MultiplyRows(adapter, Transpose::kNo, s.rows, adapter.ranks, s.out, dy, adapter.spread, 0,
               adapter.inner_gradient, stream);
}

template <typename T>
void LowRankGradients(const LinearShape& s, const LowRank<T>& adapter, const T* x, const T* dy,
                      Stream& stream) {
  if (!adapter.is_on()) return;
  x = Dropped(s, adapter, /*first_row=*/0, x, stream);
  FactorGradient(adapter, s.rows, adapter.ranks, s.in, adapter.inner_gradient, x,
                 adapter.da.adds ? 1 : 0, adapter.da.data, stream);
  MultiplyRows(adapter, Transpose::kYes, s.rows, adapter.ranks, s.in, x, adapter.a, 0,
               adapter.inner, stream);
  FactorGradient(adapter, s.rows, s.out, adapter.ranks, dy, adapter.inner, 0,
                 adapter.spread_gradient, stream);
  ScaleInPlace(int64_t{adapter.layers()} * s.out * adapter.ranks, adapter.scale,
               adapter.spread_gradient, stream);
  float* const to = adapter.db.adds ? adapter.b_gradient : adapter.db.data;
  ForParts(s, adapter, [&](int64_t rows, int64_t of_b, int64_t of_spread) {
    CopyRows(rows, adapter.rank, adapter.spread_gradient + of_spread, adapter.ranks, to + of_b,
             adapter.rank, stream);
  });
  const int64_t count = adapter.layers() * BRows(adapter) * adapter.rank;
  if (adapter.db.adds) AddInPlace(count, to, adapter.db.data, stream);
}

template <typename T>
void AddLowRankInputGradient(const LinearShape& s, const LowRank<T>& adapter, int first_row, T* dx,
                             Stream& stream) {
  if (!adapter.is_on()) return;
  const bool drops = adapter.dropout.is_on();
  T* const gradient = drops ? adapter.dropped : dx;
  MultiplyRows(adapter, Transpose::kNo, s.rows, s.in, adapter.ranks,
               adapter.inner_gradient + int64_t{first_row} * adapter.ranks, adapter.a,
               drops ? 0 : 1, gradient, stream);
  if (!drops) return;
  Dropout(s.rows, s.in, MaskFrom(adapter, first_row), /*adds=*/true, gradient, dx, stream);
}

CONVENE_INSTANTIATE(SpreadLowRank);
CONVENE_INSTANTIATE(AddLowRank);
CONVENE_INSTANTIATE(LowRankInnerGradient);
CONVENE_INSTANTIATE(LowRankGradients);
CONVENE_INSTANTIATE(AddLowRankInputGradient);

}  // namespace convene::worker
