#include "worker_runtime/parallel/float8_linear.h"

#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {
namespace {

template <typename T>
absl::Status Measure(int rows, int columns, const T* x, OverTp over_tp, const Float8Layer& layer,
                     float* largest, Stream& stream) {
  LargestMagnitude(int64_t{rows} * columns, x, largest, stream);
  for (Collective* group : {over_tp == OverTp::kSplit ? layer.tp : nullptr, layer.cp}) {
    if (group == nullptr || group->size() == 1) continue;
    CONVENE_RETURN_IF_ERROR(group->AllReduce(absl::MakeSpan(largest, 1), ReduceOp::kMax, stream));
  }
  return absl::OkStatus();
}

Float8Operand Codes(const Float8Places& places, DType dtype) {
  return {places.codes, places.inverse, dtype};
}
Float8Operand Turned(const Float8Places& places, DType dtype) {
  return {places.turned, places.inverse, dtype};
}

}  // namespace

template <typename T>
absl::Status Float8Forward(const LinearShape& s, const T* x, OverTp x_over_tp,
                           const Float8Layer& layer, T* y, Stream& stream) {
  const Float8Places& input = layer.input;
  CONVENE_RETURN_IF_ERROR(Measure(s.rows, s.in, x, x_over_tp, layer, input.largest, stream));
  QuantizeFloat8(s.rows, s.in, x, DType::kE4M3, input.largest, input.inverse, input.codes,
                 /*turned=*/nullptr, stream);
  Float8MatMul(s.rows, s.out, s.in, Codes(input, DType::kE4M3), Codes(layer.weight, DType::kE4M3),
               Float8Sums::kFast, 0, y, stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status Float8TakeGradient(const LinearShape& s, const T* dy, OverTp dy_over_tp,
                                bool wants_turned, const Float8Layer& layer, Stream& stream) {
  const Float8Places& gradient = layer.gradient;
  CONVENE_RETURN_IF_ERROR(Measure(s.rows, s.out, dy, dy_over_tp, layer, gradient.largest, stream));
  QuantizeFloat8(s.rows, s.out, dy, DType::kE5M2, gradient.largest, gradient.inverse,
                 gradient.codes, wants_turned ? gradient.turned : nullptr, stream);
  return absl::OkStatus();
}

template <typename T>
void Float8TakeGradientAgain(const LinearShape& s, const T* dy, const Float8Layer& layer,
                             Stream& stream) {
  const Float8Places& gradient = layer.gradient;
  QuantizeFloat8(s.rows, s.out, dy, DType::kE5M2, gradient.largest, gradient.inverse,
                 /*codes=*/nullptr, gradient.turned, stream);
}

template <typename T>
void Float8InputGradient(const LinearShape& s, const Float8Layer& layer, T* dx, Stream& stream) {
  Float8MatMul(s.rows, s.in, s.out, Codes(layer.gradient, DType::kE5M2),
               Turned(layer.weight, DType::kE4M3), Float8Sums::kExact, 0, dx, stream);
}

template <typename T>
void Float8WeightGradient(const LinearShape& s, const T* x, const WeightGradient& dweight,
                          const Float8Layer& layer, Stream& stream) {
  if (dweight.data == nullptr) return;
  const Float8Places& input = layer.input;
  QuantizeFloat8(s.rows, s.in, x, DType::kE4M3, input.largest, input.inverse, /*codes=*/nullptr,
                 input.turned, stream);
  Float8MatMul(s.out, s.in, s.rows, Turned(layer.gradient, DType::kE5M2),
               Turned(input, DType::kE4M3), Float8Sums::kExact, dweight.adds ? 1 : 0, dweight.data,
               stream);
}

CONVENE_INSTANTIATE(Float8Forward);
CONVENE_INSTANTIATE(Float8TakeGradient);
CONVENE_INSTANTIATE(Float8TakeGradientAgain);
CONVENE_INSTANTIATE(Float8InputGradient);
CONVENE_INSTANTIATE(Float8WeightGradient);

}  // namespace convene::worker
