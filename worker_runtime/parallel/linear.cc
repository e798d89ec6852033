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

namespace {

// Both products of a backward pass by the type that `float8` says.
template <typename T>
absl::Status TakeGradient(const LinearShape& shape, const T* dy, OverTp dy_over_tp,
                          const WeightGradient& dweight, const Float8Layer& float8,
                          Stream& stream) {
  if (!float8.is_on()) return absl::OkStatus();
  return Float8TakeGradient(shape, dy, dy_over_tp, dweight.data != nullptr, float8, stream);
}

template <typename T>
void InputGradient(const LinearShape& shape, const T* weight, const Float8Layer& float8,
                   const T* dy, T* dx, Stream& stream) {
  if (float8.is_on()) return Float8InputGradient(shape, float8, dx, stream);
  LinearInputGradient(shape, weight, dy, dx, stream);
}

template <typename T>
void OwnWeightGradient(const LinearShape& shape, const T* x, const Float8Layer& float8, const T* dy,
                       const WeightGradient& dweight, Stream& stream) {
  if (float8.is_on()) return Float8WeightGradient(shape, x, dweight, float8, stream);
  LinearWeightGradient(shape, x, dy, dweight, stream);
}

}  // namespace

template <typename T>
absl::Status ColumnParallelForward(const LinearShape& shape, const T* x, const T* weight,
                                   const Float8Layer& float8, T* y, Stream& stream) {
  if (float8.is_on()) return Float8Forward(shape, x, OverTp::kWhole, float8, y, stream);
  LinearForward(shape, x, weight, y, stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status ColumnParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                    const Float8Layer& float8, const T* dy, T* dx,
                                    const WeightGradient& dweight, const ResidualRows& rows,
                                    SideStream* side, Stream& stream) {
  if (dweight.data == nullptr) side = nullptr;
  CONVENE_RETURN_IF_ERROR(TakeGradient(shape, dy, OverTp::kSplit, dweight, float8, stream));
  InputGradient(shape, weight, float8, dy, dx, stream);
  CONVENE_RETURN_IF_ERROR(rows.Sum(dx, side != nullptr ? side->Fork(stream) : stream));
  OwnWeightGradient(shape, x, float8, dy, dweight, stream);
  if (side == nullptr) return absl::OkStatus();
  side->Join(stream);
  return rows.tp().Check();
}

template <typename T>
absl::Status RowParallelForward(const LinearShape& shape, const T* x, const T* weight,
                                const Float8Layer& float8, T* y, const ResidualRows& rows,
                                Stream& stream) {
  if (float8.is_on()) {
    CONVENE_RETURN_IF_ERROR(Float8Forward(shape, x, OverTp::kSplit, float8, y, stream));
  } else {
    LinearForward(shape, x, weight, y, stream);
  }
  return rows.Sum(y, stream);
}

template <typename T>
absl::Status RowParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                 const Float8Layer& float8, const T* dy, T* dx,
                                 const WeightGradient& dweight, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(TakeGradient(shape, dy, OverTp::kWhole, dweight, float8, stream));
  OwnWeightGradient(shape, x, float8, dy, dweight, stream);
  InputGradient(shape, weight, float8, dy, dx, stream);
  return absl::OkStatus();
}

template <typename T>
void LaterWeightGradient(const LinearShape& shape, const T* x, const Float8Layer& float8,
                         const T* dy, const WeightGradient& dweight, Stream& stream) {
  if (float8.is_on()) Float8TakeGradientAgain(shape, dy, float8, stream);
  OwnWeightGradient(shape, x, float8, dy, dweight, stream);
}

CONVENE_INSTANTIATE(LinearForward);
CONVENE_INSTANTIATE(LinearInputGradient);
CONVENE_INSTANTIATE(LinearWeightGradient);
CONVENE_INSTANTIATE(ColumnParallelForward);
CONVENE_INSTANTIATE(ColumnParallelBackward);
CONVENE_INSTANTIATE(RowParallelForward);
CONVENE_INSTANTIATE(RowParallelBackward);
CONVENE_INSTANTIATE(LaterWeightGradient);

}  // namespace convene::worker
