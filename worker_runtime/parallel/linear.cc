#include "worker_runtime/parallel/linear.h"

#include "worker_runtime/ops/matmul.h"

namespace convene::worker {
namespace {

void Multiply(const LinearShape& s, const float* x, const float* weight, float* y, Stream& stream) {
  MatMul(Transpose::kNo, Transpose::kYes, s.rows, s.out, s.in, x, weight, 0, y, stream);
}

void InputGradient(const LinearShape& s, const float* weight, const float* dy, float* dx,
                   Stream& stream) {
  MatMul(Transpose::kNo, Transpose::kNo, s.rows, s.in, s.out, dy, weight, 0, dx, stream);
}

// Accumulated by the product itself (beta 1): microbatches need no separate addition.
void WeightGradient(const LinearShape& s, const float* x, const float* dy, float* dweight,
                    Stream& stream) {
  MatMul(Transpose::kYes, Transpose::kNo, s.out, s.in, s.rows, dy, x, 1, dweight, stream);
}

size_t Elements(int rows, int columns) { return static_cast<size_t>(rows) * columns; }

}  // namespace

void ColumnParallelForward(const LinearShape& shape, const float* x, const float* weight, float* y,
                           Stream& stream) {
  Multiply(shape, x, weight, y, stream);
}

absl::Status ColumnParallelBackward(const LinearShape& shape, const float* x, const float* weight,
                                    const float* dy, float* dx, float* dweight, Collective& tp,
                                    Stream& stream) {
  InputGradient(shape, weight, dy, dx, stream);
  WeightGradient(shape, x, dy, dweight, stream);
  return tp.AllReduce(absl::MakeSpan(dx, Elements(shape.rows, shape.in)), ReduceOp::kSum, stream);
}

absl::Status RowParallelForward(const LinearShape& shape, const float* x, const float* weight,
                                float* y, Collective& tp, Stream& stream) {
  Multiply(shape, x, weight, y, stream);
  return tp.AllReduce(absl::MakeSpan(y, Elements(shape.rows, shape.out)), ReduceOp::kSum, stream);
}

void RowParallelBackward(const LinearShape& shape, const float* x, const float* weight,
                         const float* dy, float* dx, float* dweight, Stream& stream) {
  InputGradient(shape, weight, dy, dx, stream);
  WeightGradient(shape, x, dy, dweight, stream);
}

}  // namespace convene::worker
