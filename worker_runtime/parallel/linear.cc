#include "worker_runtime/parallel/linear.h"

#include <cstdint>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/bias.h"
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
                          const ChunkedRows& rows, Stream& stream) {
  if (!float8.is_on()) return absl::OkStatus();
  CONVENE_CHECK(rows.chunks() == 1);  // so that no gather of dy runs beside: it is there
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

LinearShape ChunkOf(const LinearShape& shape, const ChunkedRows& rows) {
  return {rows.chunk_rows(), shape.out, shape.in};
}

int64_t FirstRow(const ChunkedRows& rows, int chunk) { return int64_t{chunk} * rows.chunk_rows(); }

// Where rows are split, calls product(shape, first row) for each chunk as soon as the chunk of
// `awaited` is there. Else all rows are there, and make one product.
template <typename T, typename Product>
absl::Status ForGatheredRows(const LinearShape& shape, const T* awaited, ChunkedRows& rows,
                             Stream& stream, const Product& product) {
  if (!rows.is_split()) {
    product(shape, 0);
    return absl::OkStatus();
  }
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(awaited, c, stream));
    product(ChunkOf(shape, rows), FirstRow(rows, c));
  }
  return absl::OkStatus();
}

}  // namespace

template <typename T>
absl::Status ColumnParallelForward(const LinearShape& shape, const T* x, const T* weight,
                                   const T* bias, const Float8Layer& float8, T* y,
                                   ChunkedRows& rows, Stream& stream) {
  if (float8.is_on()) {
    CONVENE_CHECK(rows.chunks() == 1);
    CONVENE_RETURN_IF_ERROR(Float8Forward(shape, x, OverTp::kWhole, float8, y, stream));
    if (bias != nullptr) AddBias(shape.rows, shape.out, bias, y, stream);
    return absl::OkStatus();
  }
  return ForGatheredRows(shape, x, rows, stream, [&](const LinearShape& part, int64_t row) {
    T* const part_y = y + row * shape.out;
    LinearForward(part, x + row * shape.in, weight, part_y, stream);
    if (bias != nullptr) AddBias(part.rows, part.out, bias, part_y, stream);
  });
}

template <typename T>
absl::Status ColumnParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                    const Float8Layer& float8, const T* dy, T* dx,
                                    const WeightGradient& dweight, ChunkedRows& rows,
                                    Stream& stream) {
  CONVENE_RETURN_IF_ERROR(TakeGradient(shape, dy, OverTp::kSplit, dweight, float8, rows, stream));
  for (int c = 0; c < rows.chunks(); ++c) {
    InputGradient(ChunkOf(shape, rows), weight, float8, dy + FirstRow(rows, c) * shape.out,
                  rows.Chunk(dx, c), stream);
    CONVENE_RETURN_IF_ERROR(rows.StartSum(dx, c, stream, /*has_work=*/dweight.data != nullptr));
  }
  CONVENE_RETURN_IF_ERROR(rows.Finish(x, stream));
  OwnWeightGradient(shape, x, float8, dy, dweight, stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status RowParallelForward(const LinearShape& shape, const T* x, const T* weight,
                                const T* bias, const Float8Layer& float8, T* y, ChunkedRows& rows,
                                Stream& stream) {
  CONVENE_CHECK(!float8.is_on() || rows.chunks() == 1);
  const bool adds_bias = bias != nullptr && rows.tp().rank() == 0;
  for (int c = 0; c < rows.chunks(); ++c) {
    T* const part_y = rows.Chunk(y, c);
    if (float8.is_on()) {
      CONVENE_RETURN_IF_ERROR(Float8Forward(shape, x, OverTp::kSplit, float8, y, stream));
    } else {
      LinearForward(ChunkOf(shape, rows), x + FirstRow(rows, c) * shape.in, weight, part_y, stream);
    }
    if (adds_bias) AddBias(rows.chunk_rows(), shape.out, bias, part_y, stream);
    CONVENE_RETURN_IF_ERROR(rows.StartSum(y, c, stream));
  }
  return absl::OkStatus();
}

// The weight's gradient wants all of dy, so it comes last, unless dx takes the place of x.
template <typename T>
absl::Status RowParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                 const Float8Layer& float8, const T* dy, T* dx,
                                 const WeightGradient& dweight, ChunkedRows& rows, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(TakeGradient(shape, dy, OverTp::kWhole, dweight, float8, rows, stream));
  if (dx == x) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(dy, stream));
    OwnWeightGradient(shape, x, float8, dy, dweight, stream);
  }
  CONVENE_RETURN_IF_ERROR(
      ForGatheredRows(shape, dy, rows, stream, [&](const LinearShape& part, int64_t row) {
        InputGradient(part, weight, float8, dy + row * shape.out, dx + row * shape.in, stream);
      }));
  if (dx != x) OwnWeightGradient(shape, x, float8, dy, dweight, stream);
  return absl::OkStatus();
}

template <typename T>
void ColumnBiasBackward(const LinearShape& shape, const T* dy, const WeightGradient& dbias,
                        const Workspace& workspace, Stream& stream) {
  if (dbias.data == nullptr) return;
  BiasBackward(shape.rows, shape.out, dy, dbias.adds, dbias.data, workspace, stream);
}

// All rows of a rank that holds all make one sum, as in NormBackward.
template <typename T>
void RowBiasBackward(const LinearShape& shape, const T* dy, const WeightGradient& dbias,
                     const Workspace& workspace, const ChunkedRows& rows, Stream& stream) {
  if (!rows.is_split()) return ColumnBiasBackward(shape, dy, dbias, workspace, stream);
  if (dbias.data == nullptr) return;
  for (int c = 0; c < rows.chunks(); ++c) {
    BiasBackward(rows.chunk().own(), shape.out, rows.Own(dy, c), dbias.adds || c > 0, dbias.data,
                 workspace, stream);
  }
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
CONVENE_INSTANTIATE(ColumnBiasBackward);
CONVENE_INSTANTIATE(RowBiasBackward);
CONVENE_INSTANTIATE(LaterWeightGradient);

}  // namespace convene::worker
