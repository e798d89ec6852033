#include "worker_runtime/parallel/norm.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/rms_norm.h"

namespace convene::worker {

template <typename T>
absl::Status NormForward(const Norm<T>& norm, const T* x, const T* delta, T* sum, T* y,
                         ChunkedRows& rows, Stream& stream) {
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    if (delta != nullptr) CONVENE_RETURN_IF_ERROR(rows.Finish(delta, c, stream));
    RmsNormForward(own, norm.columns, rows.Packed(x, c),
                   delta != nullptr ? rows.Own(delta, c) : nullptr, norm.weight, norm.epsilon,
                   rows.Packed(sum, c), rows.Own(y, c), norm.inverse_rms + c * own, stream);
    CONVENE_RETURN_IF_ERROR(rows.StartGather(y, c, stream));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status NormAgain(const Norm<T>& norm, const T* sum, T* y, ChunkedRows& rows, Stream& stream) {
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    RmsNormAgain(own, norm.columns, rows.Packed(sum, c), norm.weight, norm.inverse_rms + c * own,
                 rows.Own(y, c), stream);
    CONVENE_RETURN_IF_ERROR(rows.StartGather(y, c, stream));
  }
  return absl::OkStatus();
}

// All rows of a rank that holds all make one call, so that the weight's gradient is added up in
// their order.
template <typename T>
absl::Status NormBackward(const Norm<T>& norm, const T* sum, const T* dy, bool add_to_dx, T* dx,
                          const WeightGradient& dweight, const Workspace& workspace,
                          ChunkedRows& rows, Stream& stream) {
  if (!rows.is_split()) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(dy, stream));
    RmsNormBackward(rows.own(), norm.columns, sum, norm.weight, norm.inverse_rms, dy, add_to_dx, dx,
                    dweight.adds, dweight.data, workspace, stream);
    return absl::OkStatus();
  }
  const int own = rows.chunk().own();
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(dy, c, stream));
    RmsNormBackward(own, norm.columns, rows.Packed(sum, c), norm.weight, norm.inverse_rms + c * own,
                    rows.Own(dy, c), add_to_dx, rows.Own(dx, c), dweight.adds || c > 0,
                    dweight.data, workspace, stream);
  }
  return absl::OkStatus();
}

CONVENE_INSTANTIATE(NormForward);
CONVENE_INSTANTIATE(NormAgain);
CONVENE_INSTANTIATE(NormBackward);

}  // namespace convene::worker
