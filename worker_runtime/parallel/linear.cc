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
absl::Status TakeGradient(const Linear<T>& layer, const T* dy, OverTp dy_over_tp,
                          const WeightGradient& dweight, const ChunkedRows& rows, Stream& stream) {
  if (!layer.float8.is_on()) return absl::OkStatus();
  CONVENE_CHECK(rows.chunks() == 1);  // so that no gather of dy runs beside: it is there
  return Float8TakeGradient(layer.shape, dy, dy_over_tp, dweight.data != nullptr, layer.float8,
                            stream);
}

// Of the rows of `shape`.
template <typename T>
void InputGradient(const Linear<T>& layer, const LinearShape& shape, const T* dy, T* dx,
                   Stream& stream) {
  if (layer.float8.is_on()) return Float8InputGradient(shape, layer.float8, dx, stream);
  LinearInputGradient(shape, layer.weight, dy, dx, stream);
}

template <typename T>
void OwnWeightGradient(const Linear<T>& layer, const T* x, const T* dy,
                       const WeightGradient& dweight, Stream& stream) {
  if (layer.float8.is_on()) {
    return Float8WeightGradient(layer.shape, x, dweight, layer.float8, stream);
  }
  LinearWeightGradient(layer.shape, x, dy, dweight, stream);
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
absl::Status ColumnParallelForward(const Linear<T>& layer, const T* x, T* y, ChunkedRows& rows,
                                   Stream& stream) {
  const LinearShape& shape = layer.shape;
  SpreadLowRank(shape, layer.low_rank, stream);
  const auto add = [&](const LinearShape& part, int64_t row, const T* part_x, T* part_y) {
    AddLowRank(part, layer.low_rank, static_cast<int>(row), part_x, part_y, stream);
    if (layer.bias != nullptr) AddBias(part.rows, part.out, layer.bias, part_y, stream);
  };
  if (layer.float8.is_on()) {
    CONVENE_CHECK(rows.chunks() == 1);
    CONVENE_RETURN_IF_ERROR(Float8Forward(shape, x, OverTp::kWhole, layer.float8, y, stream));
    add(shape, 0, x, y);
    return absl::OkStatus();
  }
  return ForGatheredRows(shape, x, rows, stream, [&](const LinearShape& part, int64_t row) {
    LinearForward(part, x + row * shape.in, layer.weight, y + row * shape.out, stream);
    add(part, row, x + row * shape.in, y + row * shape.out);
  });
}

template <typename T>
absl::Status ColumnParallelBackward(const Linear<T>& layer, const T* x, const T* dy, T* dx,
                                    const WeightGradient& dweight, ChunkedRows& rows,
                                    Stream& stream) {
  const LinearShape& shape = layer.shape;
  const LinearShape chunk = ChunkOf(shape, rows);
  CONVENE_RETURN_IF_ERROR(TakeGradient(layer, dy, OverTp::kSplit, dweight, rows, stream));
  SpreadLowRank(shape, layer.low_rank, stream);
  LowRankInnerGradient(shape, layer.low_rank, dy, stream);
  const bool has_work = dweight.data != nullptr || layer.low_rank.is_on();
  for (int c = 0; c < rows.chunks(); ++c) {
    T* const chunk_dx = rows.Chunk(dx, c);
    InputGradient(layer, chunk, dy + FirstRow(rows, c) * shape.out, chunk_dx, stream);
    AddLowRankInputGradient(chunk, layer.low_rank, static_cast<int>(FirstRow(rows, c)), chunk_dx,
                            stream);
    CONVENE_RETURN_IF_ERROR(rows.StartSum(dx, c, stream, has_work));
  }
  CONVENE_RETURN_IF_ERROR(rows.Finish(x, stream));
  OwnWeightGradient(layer, x, dy, dweight, stream);
  LowRankGradients(shape, layer.low_rank, x, dy, stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status RowParallelForward(const Linear<T>& layer, const T* x, T* y, ChunkedRows& rows,
                                Stream& stream) {
  const LinearShape& shape = layer.shape;
  const LinearShape chunk = ChunkOf(shape, rows);
  CONVENE_CHECK(!layer.float8.is_on() || rows.chunks() == 1);
  const bool adds_bias = layer.bias != nullptr && rows.tp().rank() == 0;
  SpreadLowRank(shape, layer.low_rank, stream);
  for (int c = 0; c < rows.chunks(); ++c) {
    const T* const chunk_x = x + FirstRow(rows, c) * shape.in;
    T* const chunk_y = rows.Chunk(y, c);
    if (layer.float8.is_on()) {
      CONVENE_RETURN_IF_ERROR(Float8Forward(shape, x, OverTp::kSplit, layer.float8, y, stream));
    } else {
      LinearForward(chunk, chunk_x, layer.weight, chunk_y, stream);
    }
    AddLowRank(chunk, layer.low_rank, static_cast<int>(FirstRow(rows, c)), chunk_x, chunk_y,
               stream);
    if (adds_bias) AddBias(chunk.rows, shape.out, layer.bias, chunk_y, stream);
    CONVENE_RETURN_IF_ERROR(rows.StartSum(y, c, stream));
  }
  return absl::OkStatus();
}

// Gradients of weights want all of dy, so they come last, unless dx takes the place of x.
template <typename T>
absl::Status RowParallelBackward(const Linear<T>& layer, const T* x, const T* dy, T* dx,
                                 const WeightGradient& dweight, ChunkedRows& rows, Stream& stream) {
  const LinearShape& shape = layer.shape;
  CONVENE_RETURN_IF_ERROR(TakeGradient(layer, dy, OverTp::kWhole, dweight, rows, stream));
  SpreadLowRank(shape, layer.low_rank, stream);
  const auto weight_gradients = [&] {
    OwnWeightGradient(layer, x, dy, dweight, stream);
    LowRankInnerGradient(shape, layer.low_rank, dy, stream);
    LowRankGradients(shape, layer.low_rank, x, dy, stream);
  };
  if (dx == x) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(dy, stream));
    weight_gradients();
  }
  CONVENE_RETURN_IF_ERROR(
      ForGatheredRows(shape, dy, rows, stream, [&](const LinearShape& part, int64_t row) {
        InputGradient(layer, part, dy + row * shape.out, dx + row * shape.in, stream);
      }));
  if (dx != x) weight_gradients();
  AddLowRankInputGradient(shape, layer.low_rank, /*first_row=*/0, dx, stream);
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
void LaterWeightGradient(const Linear<T>& layer, const T* x, const T* dy,
                         const WeightGradient& dweight, Stream& stream) {
  if (dweight.data == nullptr) return;
  if (layer.float8.is_on()) Float8TakeGradientAgain(layer.shape, dy, layer.float8, stream);
  OwnWeightGradient(layer, x, dy, dweight, stream);
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
