#include "worker_runtime/parallel/norm.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/layer_norm.h"
#include "worker_runtime/ops/rms_norm.h"

namespace convene::worker {
namespace {

// sum = x + delta, y = sum; delta null: y = x.
template <typename T>
void AddRows(int rows, int columns, const T* x, const T* delta, T* sum, T* y, Stream& stream) {
  CopyRows(rows, columns, x, columns, y, columns, stream);
  if (delta == nullptr) return;
  AddInPlace(int64_t{rows} * columns, delta, y, stream);
  CopyRows(rows, columns, y, columns, sum, columns, stream);
}

template <typename T>
void ForwardRows(const Norm<T>& norm, int rows, const T* x, const T* delta, T* sum, T* y,
                 float* statistics, Stream& stream) {
  switch (norm.kind) {
    case NormKind::kRms:
    case NormKind::kRmsPlusOne:
      return RmsNormForward(rows, norm.columns, x, delta, norm.weight, WeightOffset(norm.kind),
                            norm.epsilon, sum, y, statistics, stream);
    case NormKind::kLayer:
      return LayerNormForward(rows, norm.columns, x, delta, norm.weight, norm.bias, norm.epsilon,
                              sum, y, statistics, stream);
    case NormKind::kNone:
      return AddRows(rows, norm.columns, x, delta, sum, y, stream);
  }
}

template <typename T>
void RowsAgain(const Norm<T>& norm, int rows, const T* sum, const float* statistics, T* y,
               Stream& stream) {
  switch (norm.kind) {
    case NormKind::kRms:
    case NormKind::kRmsPlusOne:
      return RmsNormAgain(rows, norm.columns, sum, norm.weight, WeightOffset(norm.kind), statistics,
                          y, stream);
    case NormKind::kLayer:
      return LayerNormAgain(rows, norm.columns, sum, norm.weight, norm.bias, statistics, y, stream);
    case NormKind::kNone:
      return CopyRows(rows, norm.columns, sum, norm.columns, y, norm.columns, stream);
  }
}

template <typename T>
void BackwardRows(const Norm<T>& norm, int rows, const T* sum, const float* statistics, const T* dy,
                  bool add_to_dx, T* dx, bool adds, float* dweight, float* dbias,
                  const Workspace& workspace, Stream& stream) {
  switch (norm.kind) {
    case NormKind::kRms:
    case NormKind::kRmsPlusOne:
      return RmsNormBackward(rows, norm.columns, sum, norm.weight, WeightOffset(norm.kind),
                             statistics, dy, add_to_dx, dx, adds, dweight, workspace, stream);
    case NormKind::kLayer:
      return LayerNormBackward(rows, norm.columns, sum, norm.weight, statistics, dy, add_to_dx, dx,
                               adds, dweight, dbias, workspace, stream);
    case NormKind::kNone:
      if (add_to_dx) return AddInPlace(int64_t{rows} * norm.columns, dy, dx, stream);
      return CopyRows(rows, norm.columns, dy, norm.columns, dx, norm.columns, stream);
  }
}

// Where those of a chunk of `own` rows begin.
template <typename T>
float* StatisticsOf(const Norm<T>& norm, int own, int chunk) {
  return norm.statistics + int64_t{chunk} * own * NormStatistics(norm.kind);
}

}  // namespace

int NormStatistics(NormKind kind) { return kind == NormKind::kLayer ? kLayerNormStatistics : 1; }

size_t NormWorkspaceBytes(NormKind kind, int own_rows, int columns, DeviceKind device) {
  return kind == NormKind::kLayer ? LayerNormWorkspaceBytes(own_rows, columns, device)
                                  : RmsNormWorkspaceBytes(own_rows, columns, device);
}

template <typename T>
absl::Status NormForward(const Norm<T>& norm, const T* x, const T* delta, T* sum, T* y,
                         ChunkedRows& rows, Stream& stream) {
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    if (delta != nullptr) CONVENE_RETURN_IF_ERROR(rows.Finish(delta, c, stream));
    ForwardRows(norm, own, rows.Packed(x, c), delta != nullptr ? rows.Own(delta, c) : nullptr,
                rows.Packed(sum, c), rows.Own(y, c), StatisticsOf(norm, own, c), stream);
    CONVENE_RETURN_IF_ERROR(rows.StartGather(y, c, stream));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status NormDelta(const Norm<T>& norm, T* kept, T* delta, ChunkedRows& rows, Device& device,
                       Stream& stream) {
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(delta, c, stream));
    device.Copy(rows.Own(delta, c), rows.Packed(kept, c), rows.chunk().own_count() * sizeof(T),
                stream);
    ForwardRows<T>(norm, own, rows.Packed(kept, c), nullptr, nullptr, rows.Own(delta, c),
                   StatisticsOf(norm, own, c), stream);
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status NormAgain(const Norm<T>& norm, const T* sum, T* y, ChunkedRows& rows, Stream& stream) {
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    RowsAgain(norm, own, rows.Packed(sum, c), StatisticsOf(norm, own, c), rows.Own(y, c), stream);
    CONVENE_RETURN_IF_ERROR(rows.StartGather(y, c, stream));
  }
  return absl::OkStatus();
}

// All rows of a rank that holds all make one call, so that the weight's gradient is added up in
// their order.
template <typename T>
absl::Status NormBackward(const Norm<T>& norm, const T* sum, const T* dy, bool add_to_dx, T* dx,
                          const WeightGradient& dweight, const WeightGradient& dbias,
                          const Workspace& workspace, ChunkedRows& rows, Stream& stream) {
  if (!rows.is_split()) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(dy, stream));
    BackwardRows(norm, rows.own(), sum, norm.statistics, dy, add_to_dx, dx, dweight.adds,
                 dweight.data, dbias.data, workspace, stream);
    return absl::OkStatus();
  }
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(dy, c, stream));
    BackwardRows(norm, own, rows.Packed(sum, c), StatisticsOf(norm, own, c), rows.Own(dy, c),
                 add_to_dx, rows.Own(dx, c), dweight.adds || c > 0, dweight.data, dbias.data,
                 workspace, stream);
  }
  return absl::OkStatus();
}

CONVENE_INSTANTIATE(NormForward);
CONVENE_INSTANTIATE(NormDelta);
CONVENE_INSTANTIATE(NormAgain);
CONVENE_INSTANTIATE(NormBackward);

}  // namespace convene::worker
