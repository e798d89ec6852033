// A column-parallel layer's backward pass with the sum beside the weight's gradient, and without.
#include "worker_runtime/parallel/linear.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/ops/float8.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr LinearShape kShape = {.rows = 6, .out = 6, .in = 7};
constexpr Layout kLayout = {.tp = 2};

std::vector<float> Numbers(int count, double step) {
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(std::sin(step * (i + 1))));
  return numbers;
}

struct Outcome {
  std::vector<float> dx = std::vector<float>(kShape.rows * kShape.in, NAN);
  std::vector<float> dweight = std::vector<float>(kShape.out * kShape.in, NAN);
  // By the stream that products are queued in: while the sum is called for, and at the end.
  int left_free_in_sum = -1;
  int left_free = -1;
};

// A GPU's product that leaves multiprocessors to a sum may be another one than alone.
bool AreSame(const std::vector<float>& left, const std::vector<float>& right) {
  if (!testing::OnGpus()) return left == right;
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](float a, float b) { return std::abs(a - b) < 1e-5f; });
}

// Notes what products leave free when it is called.
class WatchedSum : public testing::ForwardingCollective {
 public:
  WatchedSum(std::unique_ptr<Collective> base, const Stream& products, int* left_free)
      : ForwardingCollective(std::move(base)), products_(products), left_free_(left_free) {}

  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    *left_free_ = products_.left_free();
    return ForwardingCollective::Call(call, stream);
  }

 private:
  const Stream& products_;
  int* const left_free_;
};

absl::Status Backward(testing::Place& place, bool is_split, bool beside, Outcome& outcome) {
  Device& device = *place.device;
  SideStream side(device);
  std::unique_ptr<Collective>& tp = place.communicators.tp;
  tp = std::make_unique<WatchedSum>(std::move(tp), device.compute(), &outcome.left_free_in_sum);
  const double own = tp->rank() + 1;
  const DeviceArray<float> x(Numbers(kShape.rows * kShape.in, 0.3), device);
  const DeviceArray<float> weight(Numbers(kShape.out * kShape.in, 0.7 * own), device);
  const DeviceArray<float> dy(Numbers(kShape.rows * kShape.out, 0.9 * own), device);
  const DeviceArray<float> dx(outcome.dx, device);
  const DeviceArray<float> dweight(outcome.dweight, device);
  const absl::Status status = ColumnParallelBackward(
      kShape, x.data(), weight.data(), Float8Layer{}, dy.data(), dx.data(),
      {.data = dweight.data(), .adds = false}, ResidualRows(kShape.rows, kShape.in, is_split, *tp),
      beside ? &side : nullptr, device.compute());
  outcome.left_free = device.compute().left_free();
  outcome.dx = dx.Fetch();
  outcome.dweight = dweight.Fetch();
  return status;
}

std::vector<Outcome> OnAllRanks(bool is_split, bool beside) {
  const auto places = testing::Places::Make(kLayout);
  REQUIRE_OK(places);
  std::vector<Outcome> outcomes(kLayout.world_size());
  for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) {
         return Backward((**places)[rank], is_split, beside, outcomes[rank]);
       })) {
    REQUIRE_OK(end);
  }
  return outcomes;
}

TEST_CASE("a sum beside the weight's gradient gives the bits of one before it") {
  if (!testing::HasPlacesOrSkips(kLayout.world_size())) return;
  const std::vector<Outcome> beside = OnAllRanks(/*is_split=*/false, true);
  const std::vector<Outcome> before = OnAllRanks(/*is_split=*/false, false);
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(beside[rank].dx == before[rank].dx);
    CHECK(AreSame(beside[rank].dweight, before[rank].dweight));
  }
  CHECK(beside[0].dx == beside[1].dx);  // the sum, on both
  CHECK(beside[0].dweight != beside[1].dweight);
  CHECK(beside[0].left_free_in_sum == kCollectiveMultiprocessors);
  CHECK(beside[0].left_free == 0);  // again
  CHECK(before[0].left_free_in_sum == 0);
  for (const Outcome& outcome : beside) {
    for (const float value : outcome.dx) CHECK(std::isfinite(value));
    for (const float value : outcome.dweight) CHECK(std::isfinite(value));
  }
}

TEST_CASE("a rank with half of the rows has its half of the sum, and can gather the other") {
  if (!testing::HasPlacesOrSkips(kLayout.world_size())) return;
  const std::vector<Outcome> whole = OnAllRanks(/*is_split=*/false, true);
  const std::vector<Outcome> split = OnAllRanks(/*is_split=*/true, true);
  constexpr int kHalf = kShape.rows * kShape.in / 2;
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(split[rank].dweight == whole[rank].dweight);
    for (int i = rank * kHalf; i < (rank + 1) * kHalf; ++i) {
      CHECK(split[rank].dx[i] == whole[rank].dx[i]);
    }
  }
  const auto places = testing::Places::Make(kLayout);
  REQUIRE_OK(places);
  std::vector<std::vector<float>> gathered(2, std::vector<float>(kHalf * 2, NAN));
  for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) -> absl::Status {
         auto& [device, communicators, memory] = (**places)[rank];
         const ResidualRows rows(kShape.rows, kShape.in, /*is_split=*/true, *communicators.tp);
         const auto first = whole[0].dx.begin() + static_cast<ptrdiff_t>(rank) * kHalf;
         const DeviceArray<float> all(gathered[rank], *device);
         testing::Put(std::vector<float>(first, first + kHalf), rows.Own(all.data()), *device);
         CONVENE_RETURN_IF_ERROR(rows.Gather(all.data(), device->compute()));
         gathered[rank] = all.Fetch();
         return absl::OkStatus();
       })) {
    REQUIRE_OK(end);
  }
  for (const std::vector<float>& all : gathered) CHECK(all == whole[0].dx);
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
  const ResidualRows of_rows(rows, in, /*is_split=*/false, *layer.tp);
  CONVENE_RETURN_IF_ERROR(
      ColumnParallelForward<float>(kFloat8Shape, x.data(), nullptr, layer, y.data(), stream));
  const WeightGradient gradient_of_weight = {.data = dweight.data(), .adds = false};
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward<float>(
      kFloat8Shape, x.data(), nullptr, layer, dy.data(), dx.data(),
      later ? WeightGradient{} : gradient_of_weight, of_rows, nullptr, stream));
  if (later) {
    LaterWeightGradient<float>(kFloat8Shape, x.data(), layer, dy.data(), gradient_of_weight,
                               stream);
  }
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
  CONVENE_RETURN_IF_ERROR(
      RowParallelForward<float>(kFloat8Shape, numbers.data(), nullptr, layer, sums.data(),
                                ResidualRows(rows, out, /*is_split=*/false, *layer.tp), stream));
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward<float>(
      kFloat8Shape, numbers.data(), nullptr, layer, numbers.data(), sums.data(), {},
      ResidualRows(rows, in, /*is_split=*/false, *layer.tp), nullptr, stream));
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
