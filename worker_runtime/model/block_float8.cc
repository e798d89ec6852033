#include "worker_runtime/model/block_float8.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {
namespace {

Float8Places PlacesOf(const ArenaBlock<uint8_t>& codes, const ArenaBlock<uint8_t>& turned,
                      const Float8Scales& scales, BlockTensor tensor) {
  return {At(codes), At(turned), At(scales.largest) + tensor, At(scales.inverse) + tensor};
}

}  // namespace

Float8Scales DeclareFloat8Scales(const char* name, Arena& arena) {
  return {.largest = arena.Declare<float>(name, kDown + 1, ArenaPart::kCollective),
          .inverse = arena.Declare<float>(name, kDown + 1)};
}

Float8Weights DeclareFloat8Weights(const BlockShape& shape, Arena& arena) {
  Float8Weights weights;
  for (const BlockTensor tensor : kLinearTensors) {
    const LinearShape linear = LinearShapeOf(shape, tensor);
    const int64_t count = int64_t{linear.out} * linear.in;
    weights.codes[tensor] = arena.Declare<uint8_t>("fp8/weights", count);
    weights.turned[tensor] = arena.Declare<uint8_t>("fp8/weights", count);
  }
  weights.scales = DeclareFloat8Scales("fp8/scales", arena);
  return weights;
}

Float8Scratch DeclareFloat8Scratch(const BlockShape& shape, Arena& arena) {
  int64_t in = 0;
  int64_t out = 0;
  for (const BlockTensor tensor : kLinearTensors) {
    const LinearShape linear = LinearShapeOf(shape, tensor);
    in = std::max<int64_t>(in, linear.in);
    out = std::max<int64_t>(out, linear.out);
  }
  const int64_t rows = shape.rows();
  return {.input = arena.Declare<uint8_t>("scratch/fp8 input", rows * in),
          .gradient = arena.Declare<uint8_t>("scratch/fp8 gradient", rows * out),
          .gradient_turned = arena.Declare<uint8_t>("scratch/fp8 gradient", rows * out),
          .gradients = DeclareFloat8Scales("fp8/scales", arena)};
}

template <typename T>
Float8Layer BlockFloat8::Layer(const Pass<T>& pass, BlockTensor tensor) const {
  if (!is_on) return {};
  const Float8Scales& of_gradient =
      pass.deferred < 0 ? scratch.gradients : gradients[pass.deferred];
  return {.weight = PlacesOf(weights.codes[tensor], weights.turned[tensor], weights.scales, tensor),
          .input = PlacesOf(scratch.input, scratch.input, inputs[pass.slot], tensor),
          .gradient = PlacesOf(scratch.gradient, scratch.gradient_turned, of_gradient, tensor),
          .tp = &pass.around.rows->tp(),
          .cp = pass.around.cp};
}

template <typename T>
absl::Status RoundWeights(const BlockShape& shape, const BlockFloat8& float8, const Pass<T>& pass) {
  const Float8Weights& weights = float8.weights;
  for (const BlockTensor tensor : kLinearTensors) {
    const auto count = static_cast<int64_t>(weights.codes[tensor].size());
    LargestMagnitude(count, pass.Weight(tensor), At(weights.scales.largest) + tensor, pass.stream);
  }
  Collective& tp = pass.around.rows->tp();
  if (tp.size() > 1) {
    CONVENE_RETURN_IF_ERROR(
        tp.AllReduce(weights.scales.largest.span(), ReduceOp::kMax, pass.stream));
  }
  for (const BlockTensor tensor : kLinearTensors) {
    const LinearShape linear = LinearShapeOf(shape, tensor);
    const Float8Places places = float8.Layer(pass, tensor).weight;
    QuantizeFloat8(linear.out, linear.in, pass.Weight(tensor), DType::kE4M3, places.largest,
                   places.inverse, places.codes, places.turned, pass.stream);
  }
  return absl::OkStatus();
}

template Float8Layer BlockFloat8::Layer(const Pass<float>&, BlockTensor) const;
template Float8Layer BlockFloat8::Layer(const Pass<BFloat16>&, BlockTensor) const;
CONVENE_INSTANTIATE(RoundWeights);

}  // namespace convene::worker
