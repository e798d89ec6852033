// Layers whose products take 8-bit floats, against the definition, and what ranks share of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/ops/float8.h"
#include "worker_runtime/parallel/linear.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

std::vector<float> Numbers(int count, double step) {
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(std::sin(step * (i + 1))));
  return numbers;
}

// A layer's three products in 8-bit floats on one rank, and the same by the definition, in double.
struct Float8Products {
  std::vector<float> y, dx, dweight;
};

constexpr LinearShape kFloat8Shape = {.rows = 48, .out = 32, .in = 16};

absl::Status MultiplyFloat8(testing::Place& place, bool later, Float8Products& products) {
  Device& device = *place.device;
  const auto& [rows, out, in] = kFloat8Shape;
  Stream& stream = device.compute();
  const DeviceArray<float> x(Numbers(rows * in, 0.3), device);
  const DeviceArray<float> weight(Numbers(out * in, 0.7), device);
  const DeviceArray<float> dy(Numbers(rows * out, 0.9), device);
  const DeviceArray<float> y(std::vector<float>(rows * out, NAN), device);
  const DeviceArray<float> dx(std::vector<float>(rows * in, NAN), device);
  const DeviceArray<float> dweight(std::vector<float>(out * in, NAN), device);
  const DeviceArray<float> scales(std::vector<float>(6, NAN), device);
  const DeviceArray<uint8_t> codes(std::vector<uint8_t>(2 * out * in), device);
  const DeviceArray<uint8_t> scratch(std::vector<uint8_t>(rows * (in + 2 * out)), device);
  uint8_t* const gradient = scratch.data() + rows * in;
  const Float8Layer layer = {
      .weight = {codes.data(), codes.data() + out * in, scales.data(), scales.data() + 1},
      .input = {scratch.data(), scratch.data(), scales.data() + 2, scales.data() + 3},
      .gradient = {gradient, gradient + rows * out, scales.data() + 4, scales.data() + 5},
      .tp = place.communicators.tp.get(),
      .cp = place.communicators.cp.get()};
  LargestMagnitude(out * in, weight.data(), layer.weight.largest, stream);
  QuantizeFloat8(out, in, weight.data(), DType::kE4M3, layer.weight.largest, layer.weight.inverse,
                 layer.weight.codes, layer.weight.turned, stream);
  ChunkedRows of_rows(rows, in, /*is_split=*/false, *layer.tp);
  const Linear<float> linear = {.shape = kFloat8Shape, .float8 = layer};
  CONVENE_RETURN_IF_ERROR(ColumnParallelForward(linear, x.data(), y.data(), of_rows, stream));
  const WeightGradient gradient_of_weight = {.data = dweight.data(), .adds = false};
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(linear, x.data(), dy.data(), dx.data(),
                                                 later ? WeightGradient{} : gradient_of_weight,
                                                 of_rows, stream));
  if (later) LaterWeightGradient(linear, x.data(), dy.data(), gradient_of_weight, stream);
  products = {y.Fetch(), dx.Fetch(), dweight.Fetch()};
  return absl::OkStatus();
}

// The numbers that stand for `values` after they were rounded.
template <DType kType>
std::vector<double> Rounded(const std::vector<float>& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = Float8Scale(kType, largest);
  std::vector<double> rounded;
  for (const float value : values) {
    rounded.push_back(double{DecodeFloat8(kType, EncodeFloat8<kType>(value * scale))} / scale);
  }
  return rounded;
}

// The furthest that a sum over `count` products is from what was computed. `a(i, l)`, `b(j, l)`.
template <typename A, typename B>
double Furthest(const std::vector<float>& c, int rows, int columns, int count, A a, B b) {
  double furthest = 0;
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      double sum = 0;
      for (int l = 0; l < count; ++l) sum += a(i, l) * b(j, l);
      furthest = std::max(furthest, std::abs(sum - double{c[i * columns + j]}));
    }
  }
  return furthest;
}

TEST_CASE("a layer in 8-bit floats multiplies e4m3, and gradients of outputs in e5m2") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const auto places = testing::Places::Make({});
  REQUIRE_OK(places);
  const auto& [rows, out, in] = kFloat8Shape;
  const std::vector<double> x = Rounded<DType::kE4M3>(Numbers(rows * in, 0.3));
  const std::vector<double> weight = Rounded<DType::kE4M3>(Numbers(out * in, 0.7));
  const std::vector<double> dy = Rounded<DType::kE5M2>(Numbers(rows * out, 0.9));
  const auto along = [](const std::vector<double>& matrix, int width) {
    return [&matrix, width](int i, int l) { return matrix[i * width + l]; };
  };
  const auto across = [](const std::vector<double>& matrix, int width) {
    return [&matrix, width](int i, int l) { return matrix[l * width + i]; };
  };
  for (const bool later : {false, true}) {
    Float8Products products;
    for (const absl::Status& end : (*places)->OnEveryRank(
             [&](int rank) { return MultiplyFloat8((**places)[rank], later, products); })) {
      REQUIRE_OK(end);
    }
    constexpr double kSums = 1e-5;  // of up to 48 products below 1, in float
    CHECK(Furthest(products.y, rows, out, in, along(x, in), along(weight, in)) < kSums);
    CHECK(Furthest(products.dx, rows, in, out, along(dy, out), across(weight, in)) < kSums);
    CHECK(Furthest(products.dweight, out, in, rows, across(dy, out), across(x, in)) < kSums);
  }
}

// The largest magnitudes by which two tp or cp ranks round what they share.
struct Largest {
  float input = 0;
  float gradient = 0;
};

// A row-parallel layer's input and a column-parallel layer's gradient: the tensors of a block whose
// columns tp ranks have in parts.
absl::Status MeasureShared(testing::Place& place, int rank, Largest& largest) {
  Device& device = *place.device;
  const auto& [rows, out, in] = kFloat8Shape;
  Stream& stream = device.compute();
  const std::vector<float> of_rank(rows * (in + out), static_cast<float>(3 - rank));
  const DeviceArray<float> numbers(of_rank, device);
  Memory* const memory = place.collective_memory.get();
  const DeviceArray<float> scales(std::vector<float>(6, 1), device, memory);
  const DeviceArray<uint8_t> codes(std::vector<uint8_t>(rows * (in + out) + out * in), device);
  uint8_t* const gradient = codes.data() + rows * in;
  uint8_t* const weight = gradient + rows * out;
  const Float8Layer layer = {
      .weight = {weight, weight, scales.data(), scales.data() + 1},
      .input = {codes.data(), codes.data(), scales.data() + 2, scales.data() + 3},
      .gradient = {gradient, gradient, scales.data() + 4, scales.data() + 5},
      .tp = place.communicators.tp.get(),
      .cp = place.communicators.cp.get()};
  const DeviceArray<float> sums(of_rank, device, memory);
  ChunkedRows outputs(rows, out, /*is_split=*/false, *layer.tp);
  ChunkedRows inputs(rows, in, /*is_split=*/false, *layer.tp);
  const Linear<float> linear = {.shape = kFloat8Shape, .float8 = layer};
  CONVENE_RETURN_IF_ERROR(RowParallelForward(linear, numbers.data(), sums.data(), outputs, stream));
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(linear, numbers.data(), numbers.data(),
                                                 sums.data(), {}, inputs, stream));
  const std::vector<float> all = scales.Fetch();
  largest = {all[2], all[4]};
  return absl::OkStatus();
}

TEST_CASE("tensors that ranks share are rounded by the largest magnitude of all of them") {
  if (!testing::HasPlacesOrSkips(2)) return;
  for (const Layout& layout : {Layout{.tp = 2}, Layout{.cp = 2}}) {
    INFO(layout.ToString());
    const auto places = testing::Places::Make(layout);
    REQUIRE_OK(places);
    std::vector<Largest> largest(2);
    for (const absl::Status& end : (*places)->OnEveryRank(
             [&](int rank) { return MeasureShared((**places)[rank], rank, largest[rank]); })) {
      REQUIRE_OK(end);
    }
    for (const Largest& on_rank : largest) {
      CHECK(on_rank.input == 3);
      CHECK(on_rank.gradient == 3);
    }
  }
}

}  // namespace
}  // namespace convene::worker
