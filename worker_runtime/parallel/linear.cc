#include "worker_runtime/parallel/linear.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker {
template <typename T>
void LinearForward(const LinearShape& s, const T* x, const T* weight, T* y, Stream& stream) {
  MatMul(Transpose::kNo, Transpose::kYes, s.rows, s.out, s.in, x, weight, 0, y, stream);
}

template <typename T>
void LinearInputGradient(const LinearShape& s, const T* weight, const T* dy, T* dx,
                         Stream& stream) {
  MatMul(Transpose::kNo, Transpose::kNo, s.rows, s.in, s.out, dy, weight, 0, dx, stream);
}

template <typename T>
void LinearWeightGradient(const LinearShape& s, const T* x, const T* dy,
                          const WeightGradient& dweight, Stream& stream) {
  if (dweight.data == nullptr) return;
  MatMul(Transpose::kYes, Transpose::kNo, s.out, s.in, s.rows, dy, x, dweight.adds ? 1 : 0,
         dweight.data, stream);
}

template <typename T>
absl::Status ColumnParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                    const T* dy, T* dx, const WeightGradient& dweight,
                                    const ResidualRows& rows, SideStream* side, Stream& stream) {
  if (dweight.data == nullptr) side = nullptr;
  LinearInputGradient(shape, weight, dy, dx, stream);
  CONVENE_RETURN_IF_ERROR(rows.Sum(dx, side != nullptr ? side->Fork(stream) : stream));
  LinearWeightGradient(shape, x, dy, dweight, stream);
  if (side == nullptr) return absl::OkStatus();
  side->Join(stream);
  return rows.tp().Check();
}

template <typename T>
absl::Status RowParallelForward(const LinearShape& shape, const T* x, const T* weight, T* y,
                                const ResidualRows& rows, Stream& stream) {
  LinearForward(shape, x, weight, y, stream);
  return rows.Sum(y, stream);
}

template <typename T>
void RowParallelBackward(const LinearShape& shape, const T* x, const T* weight, const T* dy, T* dx,
                         const WeightGradient& dweight, Stream& stream) {
  LinearWeightGradient(shape, x, dy, dweight, stream);
  LinearInputGradient(shape, weight, dy, dx, stream);
}

CONVENE_INSTANTIATE(LinearForward);
CONVENE_INSTANTIATE(LinearInputGradient);
CONVENE_INSTANTIATE(LinearWeightGradient);
CONVENE_INSTANTIATE(ColumnParallelBackward);
CONVENE_INSTANTIATE(RowParallelForward);
CONVENE_INSTANTIATE(RowParallelBackward);

}  // namespace convene::worker
