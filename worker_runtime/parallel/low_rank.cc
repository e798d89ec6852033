#include "worker_runtime/parallel/low_rank.h"

#include <cstdint>

#include "worker_runtime/ops/elementwise.h"
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

}  // namespace

template <typename T>
void SpreadLowRank(const LinearShape& s, const LowRank<T>& adapter, Stream& stream) {
  if (!adapter.is_on()) return;
  const int64_t count = int64_t{s.out} * adapter.ranks;
  adapter.device->Zero(adapter.spread, count * sizeof(T), stream);
  for (const LowRankPart& part : adapter.parts) {
    CopyRows(part.out, adapter.rank, adapter.b + int64_t{part.first_b_row} * adapter.rank,
             adapter.rank,
             adapter.spread + int64_t{part.first_out} * adapter.ranks + part.first_rank,
             adapter.ranks, stream);
  }
  ScaleInPlace(count, adapter.scale, adapter.spread, stream);
}

template <typename T>
void AddLowRank(const LinearShape& s, const LowRank<T>& adapter, int first_row, const T* x, T* y,
                Stream& stream) {
  if (!adapter.is_on()) return;
  x = Dropped(s, adapter, first_row, x, stream);
  MatMul(Transpose::kNo, Transpose::kYes, s.rows, adapter.ranks, s.in, x, adapter.a, 0,
         adapter.inner, stream);
  MatMul(Transpose::kNo, Transpose::kYes, s.rows, s.out, adapter.ranks, adapter.inner,
         adapter.spread, 1, y, stream);
}

template <typename T>
void LowRankInnerGradient(const LinearShape& s, const LowRank<T>& adapter, const T* dy,
                          Stream& stream) {
  if (!adapter.is_on()) return;
  MatMul(Transpose::kNo, Transpose::kNo, s.rows, adapter.ranks, s.out, dy, adapter.spread, 0,
         adapter.inner_gradient, stream);
}

template <typename T>
void LowRankGradients(const LinearShape& s, const LowRank<T>& adapter, const T* x, const T* dy,
                      Stream& stream) {
  if (!adapter.is_on()) return;
  x = Dropped(s, adapter, /*first_row=*/0, x, stream);
  MatMul(Transpose::kYes, Transpose::kNo, adapter.ranks, s.in, s.rows, adapter.inner_gradient, x,
         adapter.da.adds ? 1 : 0, adapter.da.data, stream);
  MatMul(Transpose::kNo, Transpose::kYes, s.rows, adapter.ranks, s.in, x, adapter.a, 0,
         adapter.inner, stream);
  MatMul(Transpose::kYes, Transpose::kNo, s.out, adapter.ranks, s.rows, dy, adapter.inner, 0,
         adapter.spread_gradient, stream);
  ScaleInPlace(int64_t{s.out} * adapter.ranks, adapter.scale, adapter.spread_gradient, stream);
  float* const to = adapter.db.adds ? adapter.b_gradient : adapter.db.data;
  int64_t count = 0;
  for (const LowRankPart& part : adapter.parts) {
    CopyRows(part.out, adapter.rank,
             adapter.spread_gradient + int64_t{part.first_out} * adapter.ranks + part.first_rank,
             adapter.ranks, to + int64_t{part.first_b_row} * adapter.rank, adapter.rank, stream);
    count += int64_t{part.out} * adapter.rank;
  }
  if (adapter.db.adds) AddInPlace(count, to, adapter.db.data, stream);
}

template <typename T>
void AddLowRankInputGradient(const LinearShape& s, const LowRank<T>& adapter, int first_row, T* dx,
                             Stream& stream) {
  if (!adapter.is_on()) return;
  const bool drops = adapter.dropout.is_on();
  T* const gradient = drops ? adapter.dropped : dx;
  MatMul(Transpose::kNo, Transpose::kNo, s.rows, s.in, adapter.ranks,
         adapter.inner_gradient + int64_t{first_row} * adapter.ranks, adapter.a, drops ? 0 : 1,
         gradient, stream);
  if (!drops) return;
  Dropout(s.rows, s.in, MaskFrom(adapter, first_row), /*adds=*/true, gradient, dx, stream);
}

CONVENE_INSTANTIATE(SpreadLowRank);
CONVENE_INSTANTIATE(AddLowRank);
CONVENE_INSTANTIATE(LowRankInnerGradient);
CONVENE_INSTANTIATE(LowRankGradients);
CONVENE_INSTANTIATE(AddLowRankInputGradient);

}  // namespace convene::worker
