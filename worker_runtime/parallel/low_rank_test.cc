// Adapters of one rank beside the formula, written out in double.
#include "worker_runtime/parallel/low_rank.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr LinearShape kShape = {.rows = 5, .out = 9, .in = 7};
constexpr int kRank = 2;
constexpr int kRanks = 4;
constexpr float kScale = 1.5f;
// Outputs 3 and 4 have none.
const std::vector<LowRankPart> kParts = {{0, 3, 0, 0}, {5, 4, 3, 2}};
constexpr int kBRows = 7;

std::vector<float> Numbers(int count, double step) {
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(std::sin(step * (i + 1))));
  return numbers;
}

const std::vector<float> kX = Numbers(kShape.rows * kShape.in, 0.3);
const std::vector<float> kA = Numbers(kRanks * kShape.in, 0.7);
const std::vector<float> kB = Numbers(kBRows * kRank, 1.1);
const std::vector<float> kDy = Numbers(kShape.rows * kShape.out, 0.9);

// The adapters' part of y, of dx, and of the gradients of A and B.
struct Added {
  std::vector<double> y = std::vector<double>(kShape.rows * kShape.out);
  std::vector<double> dx = std::vector<double>(kShape.rows * kShape.in);
  std::vector<double> da = std::vector<double>(kRanks * kShape.in);
  std::vector<double> db = std::vector<double>(kBRows * kRank);
};

// `factors`: of x, where A takes it.
Added Expected(const std::vector<float>& factors) {
  Added added;
  for (const LowRankPart& part : kParts) {
    for (int row = 0; row < kShape.rows; ++row) {
      for (int o = 0; o < part.out; ++o) {
        const double dy = kDy[row * kShape.out + part.first_out + o];
        for (int k = 0; k < kRank; ++k) {
          const double b = kB[(part.first_b_row + o) * kRank + k];
          for (int i = 0; i < kShape.in; ++i) {
            const int at_a = (part.first_rank + k) * kShape.in + i;
            const double factor = factors[row * kShape.in + i];
            const double x = factor * kX[row * kShape.in + i];
            added.y[row * kShape.out + part.first_out + o] += kScale * b * kA[at_a] * x;
            added.dx[row * kShape.in + i] += factor * kScale * dy * b * kA[at_a];
            added.da[at_a] += kScale * dy * b * x;
            added.db[(part.first_b_row + o) * kRank + k] += kScale * dy * kA[at_a] * x;
          }
        }
      }
    }
  }
  return added;
}

void CheckNear(const std::vector<float>& values, const std::vector<double>& expected,
               double before) {
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK(values[i] == Approx(before + expected[i]).margin(1e-5));
  }
}

// Without a mask all factors are 1.
void CheckFormula(double probability) {
  const auto places = testing::Places::Make({});
  REQUIRE(places.ok());
  Device& device = *(**places)[0].device;
  Stream& stream = device.compute();
  const DeviceArray<float> x(kX, device), a(kA, device), b(kB, device), dy(kDy, device);
  std::vector<int64_t> tokens;
  for (int row = 0; row < kShape.rows; ++row) tokens.push_back(1000 * row);
  const DeviceArray<int64_t> token_numbers(tokens, device);
  const DropoutMask mask = {
      .probability = probability, .seed = 5, .layer = 3, .tokens = token_numbers.data()};
  const std::vector<float> ones(kX.size(), 1);
  const DeviceArray<float> factors(ones, device), dropped(ones, device);
  if (mask.is_on()) {
    Dropout(kShape.rows, kShape.in, mask, /*adds=*/false, dropped.data(), factors.data(), stream);
  }
  const Added expected = Expected(factors.Fetch());
  for (const bool adds : {false, true}) {
    const float before = adds ? 1 : NAN;
    const DeviceArray<float> y(std::vector<float>(kDy.size(), 1), device);
    const DeviceArray<float> dx(std::vector<float>(kX.size(), 1), device);
    const DeviceArray<float> da(std::vector<float>(kA.size(), before), device);
    const DeviceArray<float> db(std::vector<float>(kB.size(), before), device);
    const DeviceArray<float> spread(std::vector<float>(2 * kShape.out * kRanks, NAN), device);
    const DeviceArray<float> inner(std::vector<float>(2 * kShape.rows * kRanks, NAN), device);
    const DeviceArray<float> b_gradient(std::vector<float>(kB.size(), NAN), device);
    const LowRank<float> adapter = {.parts = kParts,
                                    .rank = kRank,
                                    .ranks = kRanks,
                                    .scale = kScale,
                                    .a = a.data(),
                                    .b = b.data(),
                                    .da = {.data = da.data(), .adds = adds},
                                    .db = {.data = db.data(), .adds = adds},
                                    .dropout = mask,
                                    .dropped = dropped.data(),
                                    .spread = spread.data(),
                                    .inner = inner.data(),
                                    .inner_gradient = inner.data() + kShape.rows * kRanks,
                                    .spread_gradient = spread.data() + kShape.out * kRanks,
                                    .b_gradient = b_gradient.data(),
                                    .device = &device};
    SpreadLowRank(kShape, adapter, stream);
    // In two runs of rows, as the last call below.
    constexpr int kFirst = 2;
    const LinearShape first = {kFirst, kShape.out, kShape.in};
    const LinearShape rest = {kShape.rows - kFirst, kShape.out, kShape.in};
    AddLowRank(first, adapter, 0, x.data(), y.data(), stream);
    AddLowRank(rest, adapter, kFirst, x.data() + kFirst * kShape.in, y.data() + kFirst * kShape.out,
               stream);
    LowRankInnerGradient(kShape, adapter, dy.data(), stream);
    LowRankGradients(kShape, adapter, x.data(), dy.data(), stream);
    AddLowRankInputGradient(first, adapter, 0, dx.data(), stream);
    AddLowRankInputGradient(rest, adapter, kFirst, dx.data() + kFirst * kShape.in, stream);
    CheckNear(y.Fetch(), expected.y, 1);
    CheckNear(dx.Fetch(), expected.dx, 1);
    CheckNear(da.Fetch(), expected.da, adds ? 1 : 0);
    CheckNear(db.Fetch(), expected.db, adds ? 1 : 0);
  }
}

// Three layers with rows of their own: the second has none, the third all of kX.
TEST_CASE("adapters of experts are those of each expert's layer") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const auto places = testing::Places::Make({});
  REQUIRE(places.ok());
  Device& device = *(**places)[0].device;
  Stream& stream = device.compute();
  const std::vector<int32_t> begin = {0, 2, 2, kShape.rows};
  const size_t layers = begin.size() - 1;
  const auto sized = [&](size_t count, float value) {
    return DeviceArray<float>(std::vector<float>(count, value), device);
  };
  const DeviceArray<float> x(kX, device), dy(kDy, device);
  const DeviceArray<float> a(Numbers(static_cast<int>(layers * kA.size()), 0.7), device);
  const DeviceArray<float> b(Numbers(static_cast<int>(layers * kB.size()), 1.1), device);
  const DeviceArray<float> spread = sized(layers * kShape.out * kRanks, NAN);
  const DeviceArray<float> spread_gradient = sized(layers * kShape.out * kRanks, NAN);
  const DeviceArray<float> inner = sized(2 * kShape.rows * kRanks, NAN);
  const DeviceArray<float> b_gradient = sized(layers * kB.size(), NAN);
  // y, dx, da, db.
  struct Sums {
    DeviceArray<float> y, dx, da, db;
  };
  const auto sums = [&] {
    return Sums{sized(kDy.size(), 1), sized(kX.size(), 1), sized(layers * kA.size(), 1),
                sized(layers * kB.size(), 1)};
  };
  const auto run = [&](const LinearShape& shape, const Sums& to, int row, size_t layer,
                       absl::Span<const int32_t> groups) {
    const LowRank<float> adapter = {.parts = kParts,
                                    .rank = kRank,
                                    .ranks = kRanks,
                                    .scale = kScale,
                                    .groups = groups,
                                    .a = a.data() + layer * kA.size(),
                                    .b = b.data() + layer * kB.size(),
                                    .da = {.data = to.da.data() + layer * kA.size(), .adds = true},
                                    .db = {.data = to.db.data() + layer * kB.size(), .adds = true},
                                    .spread = spread.data(),
                                    .inner = inner.data(),
                                    .inner_gradient = inner.data() + kShape.rows * kRanks,
                                    .spread_gradient = spread_gradient.data(),
                                    .b_gradient = b_gradient.data(),
                                    .device = &device};
    const float* const its_x = x.data() + row * kShape.in;
    const float* const its_dy = dy.data() + row * kShape.out;
    SpreadLowRank(shape, adapter, stream);
    AddLowRank(shape, adapter, 0, its_x, to.y.data() + row * kShape.out, stream);
    LowRankInnerGradient(shape, adapter, its_dy, stream);
    LowRankGradients(shape, adapter, its_x, its_dy, stream);
    AddLowRankInputGradient(shape, adapter, 0, to.dx.data() + row * kShape.in, stream);
  };
  const Sums together = sums();
  run(kShape, together, 0, 0, begin);
  const Sums apart = sums();
  for (size_t layer = 0; layer < layers; ++layer) {
    const int rows = begin[layer + 1] - begin[layer];
    if (rows > 0) run({rows, kShape.out, kShape.in}, apart, begin[layer], layer, {});
  }
  const auto check = [](const DeviceArray<float>& values, const DeviceArray<float>& expected) {
    const std::vector<float> wanted = expected.Fetch();
    CheckNear(values.Fetch(), {wanted.begin(), wanted.end()}, 0);
  };
  check(together.y, apart.y);
  check(together.dx, apart.dx);
  check(together.da, apart.da);
  check(together.db, apart.db);
}

TEST_CASE("a layer without adapters stays as it is") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const auto places = testing::Places::Make({});
  REQUIRE(places.ok());
  Device& device = *(**places)[0].device;
  const DeviceArray<float> y(std::vector<float>(kDy.size(), 1), device);
  SpreadLowRank(kShape, LowRank<float>(), device.compute());
  AddLowRank<float>(kShape, {}, 0, nullptr, y.data(), device.compute());
  AddLowRankInputGradient<float>(kShape, {}, 0, y.data(), device.compute());
  for (const float value : y.Fetch()) CHECK(value == 1);
}

TEST_CASE("adapters add what the formula says, and learn by its slopes") {
  if (!testing::HasPlacesOrSkips(1)) return;
  CheckFormula(0);
}

TEST_CASE("an adapter with dropout does so with what is left of its input") {
  if (!testing::HasPlacesOrSkips(1)) return;
  CheckFormula(0.4);
}

}  // namespace
}  // namespace convene::worker
