// Cross-entropy, flat arrays and the optimizer on the GPU, against the plain references in double.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/testing/kernel_testing.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/adamw.h"
#include "worker_runtime/ops/testing/reference/cross_entropy.h"
#include "worker_runtime/ops/testing/reference/sgd.h"

namespace convene::worker {
namespace {

using convene::testing::HasGpuOrSkips;
using cuda::Gpu;
using cuda::GpuWorkspace;
using cuda::OnGpu;
using cuda::SameBits;
using testing::As;
using testing::Compare;
using testing::Integers;
using testing::kBackward;
using testing::kForward;
using testing::Load;
using testing::Numbers;
using testing::NumbersOf;
using testing::Outputs;
using testing::Store;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Logits {
  int rows, vocabulary_begin, vocabulary_end;
  size_t offset = 0;  // elements by which they miss their alignment
  int columns() const { return vocabulary_end - vocabulary_begin; }
  size_t size() const { return static_cast<size_t>(rows) * columns(); }
};
const std::vector<Logits> kLogits = {{1, 0, 1},      {3, 0, 7},         {4, 10, 41},
                                     {5, 64, 128},   {9, 0, 257},       {40, 100, 1137},
                                     {3, 0, 50257},  {2, 0, 128256},    {3, 0, 4096, 1},
                                     {6, 0, 999, 3}, {2, 64128, 128256}};

// Targets in the slice, outside it, and none.
std::vector<int32_t> Targets(const Logits& shape) {
  auto targets = Integers(shape.rows, 7, shape.vocabulary_begin - 3, shape.vocabulary_end + 3);
  for (size_t row = 0; row < targets.size(); row += 4) {
    targets[row] = row % 8 == 0 ? shape.vocabulary_end - 1 : -1;
  }
  return targets;
}

TEMPLATE_TEST_CASE("cross-entropy's statistics on the GPU agree with the reference", "", float,
                   BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Logits& shape : kLogits) {
    CAPTURE(shape.rows, shape.vocabulary_begin, shape.vocabulary_end, shape.offset);
    const auto logits = NumbersOf<TestType>(shape.size(), 1, 12);
    const auto targets = Targets(shape);
    Compare<float>(
        kForward,
        [&] {
          OnGpu<TestType> logits_there(Store<TestType>(logits), shape.offset);
          OnGpu<int32_t> targets_there(targets);
          OnGpu<float> row_max(shape.rows);
          OnGpu<float> sums(2 * static_cast<size_t>(shape.rows));
          cuda::CrossEntropyStatistics<TestType>(
              shape.rows, shape.vocabulary_begin, shape.vocabulary_end, targets_there.data(),
              logits_there.data(), row_max.data(), sums.data(), Gpu().compute());
          return Outputs<float>{row_max.Read(), sums.Read()};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> result = {std::vector<Real>(shape.rows), std::vector<Real>(2 * shape.rows)};
          reference::CrossEntropyStatistics<Real>(
              shape.rows, shape.vocabulary_begin, shape.vocabulary_end, targets.data(),
              As<Real>(logits).data(), result[0].data(), result[1].data());
          return result;
        });
  }
}

TEMPLATE_TEST_CASE("cross-entropy's gradient on the GPU agrees with the reference", "", float,
                   BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const Logits& shape : kLogits) {
    CAPTURE(shape.rows, shape.vocabulary_begin, shape.vocabulary_end, shape.offset);
    const auto logits = NumbersOf<TestType>(shape.size(), 1, 12);
    const auto targets = Targets(shape);
    const float scale = 0.03f;
    std::vector<double> exact_max(shape.rows);
    std::vector<double> exact_sums(2 * shape.rows);
    reference::CrossEntropyStatistics<double>(
        shape.rows, shape.vocabulary_begin, shape.vocabulary_end, targets.data(),
        As<double>(logits).data(), exact_max.data(), exact_sums.data());
    const std::vector<float> row_max(exact_max.begin(), exact_max.end());
    const std::vector<float> sums(exact_sums.begin(), exact_sums.end());
    Compare<TestType>(
        kBackward,
        [&] {
          OnGpu<TestType> logits_there(Store<TestType>(logits), shape.offset);
          OnGpu<int32_t> targets_there(targets);
          OnGpu<float> row_max_there(row_max);
          OnGpu<float> sums_there(sums);
          OnGpu<float> scale_there(std::vector<float>{scale});
          cuda::CrossEntropyGradient<TestType>(
              shape.rows, shape.vocabulary_begin, shape.vocabulary_end, targets_there.data(),
              row_max_there.data(), sums_there.data(), scale_there.data(), logits_there.data(),
              Gpu().compute());
          return Outputs<float>{Load(logits_there.Read())};
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> result = {As<Real>(logits)};
          reference::CrossEntropyGradient<Real>(
              shape.rows, shape.vocabulary_begin, shape.vocabulary_end, targets.data(),
              As<Real>(row_max).data(), As<Real>(sums).data(), Real{scale}, result[0].data());
          return result;
        });
  }
}

TEMPLATE_TEST_CASE("cross-entropy at once on the GPU gives the bits of statistics and gradient", "",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  std::vector<Logits> shapes = kLogits;
  // Blocks that go through several rows: more rows than any GPU has multiprocessors four times.
  shapes.push_back({.rows = 1501, .vocabulary_begin = 0, .vocabulary_end = 37});
  for (const Logits& shape : shapes) {
    CAPTURE(shape.rows, shape.vocabulary_begin, shape.vocabulary_end, shape.offset);
    const auto logits = NumbersOf<TestType>(shape.size(), 1, 12);
    OnGpu<int32_t> targets(Targets(shape));
    OnGpu<float> scale(std::vector<float>{0.03f});
    const auto run = [&](bool at_once) {
      OnGpu<TestType> x(Store<TestType>(logits), shape.offset);
      OnGpu<float> row_max(shape.rows);
      OnGpu<float> sums(2 * static_cast<size_t>(shape.rows));
      Stream& stream = Gpu().compute();
      const int begin = shape.vocabulary_begin;
      const int end = shape.vocabulary_end;
      if (at_once) {
        cuda::CrossEntropyAtOnce<TestType>(shape.rows, begin, end, targets.data(), scale.data(),
                                           row_max.data(), sums.data(), x.data(), stream);
      } else {
        cuda::CrossEntropyStatistics<TestType>(shape.rows, begin, end, targets.data(), x.data(),
                                               row_max.data(), sums.data(), stream);
        cuda::CrossEntropyGradient<TestType>(shape.rows, begin, end, targets.data(), row_max.data(),
                                             sums.data(), scale.data(), x.data(), stream);
      }
      return Outputs<float>{row_max.Read(), sums.Read(), Load(x.Read())};
    };
    const bool are_same = run(true) == run(false);
    CHECK(are_same);
  }
}

TEMPLATE_TEST_CASE("a NaN among the logits shows on the GPU, and logits of -inf do not make one",
                   "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  constexpr int kRows = 4;
  constexpr int kColumns = 5000;
  auto logits = Numbers(size_t{kRows} * kColumns, 1, 12);
  logits[3 * kColumns - 1] = NAN;                                        // the last of row 2
  for (int i = 1; i < kColumns; ++i) logits[kColumns + i] = -kInfinity;  // all but one of row 1
  logits[3 * kColumns] = kInfinity;                                      // the first of row 3
  OnGpu<TestType> logits_there(Store<TestType>(logits));
  OnGpu<int32_t> targets(std::vector<int32_t>{0, 0, 0, 0});
  OnGpu<float> row_max(kRows);
  OnGpu<float> sums(2 * kRows);
  cuda::CrossEntropyStatistics<TestType>(kRows, 0, kColumns, targets.data(), logits_there.data(),
                                         row_max.data(), sums.data(), Gpu().compute());
  const std::vector<float> sums_here = sums.Read();
  CHECK(std::isfinite(sums_here[0]));
  CHECK(sums_here[2] == 1);
  CHECK(std::isnan(sums_here[4]));
  CHECK(std::isnan(sums_here[6]));
  OnGpu<float> scale(std::vector<float>{1.0f});
  cuda::CrossEntropyGradient<TestType>(kRows, 0, kColumns, targets.data(), row_max.data(),
                                       sums.data(), scale.data(), logits_there.data(),
                                       Gpu().compute());
  const std::vector<float> gradient = Load(logits_there.Read());
  int nans_in_row[kRows] = {};
  for (size_t i = 0; i < gradient.size(); ++i) nans_in_row[i / kColumns] += std::isnan(gradient[i]);
  CHECK(nans_in_row[0] == 0);
  CHECK(nans_in_row[1] == 0);
  CHECK(nans_in_row[2] == kColumns);
  CHECK(nans_in_row[3] == kColumns);
  CHECK(gradient[kColumns] == 0);  // the target has all the probability
}

TEST_CASE("cross-entropy's rescaling and loss on the GPU agree with the reference") {
  if (!HasGpuOrSkips()) return;
  for (const int rows : {1, 31, 256, 1000, 70000}) {
    CAPTURE(rows);
    const auto slice_max = Numbers(rows, 1, 12);
    auto row_max = slice_max;
    const auto raise = Numbers(rows, 2);
    for (int row = 0; row < rows; ++row) row_max[row] += std::abs(raise[row]);
    auto sums = Numbers(2 * static_cast<size_t>(rows), 3);
    for (float& sum : sums) sum = std::abs(sum) + 1;
    const auto targets = Integers(rows, 4, -5, 20);
    const double loss_before = 17;
    const auto run = [&] {
      OnGpu<float> slice_max_there(slice_max);
      OnGpu<float> row_max_there(row_max);
      OnGpu<float> sums_there(sums);
      OnGpu<int32_t> targets_there(targets);
      OnGpu<double> loss(std::vector<double>{loss_before});
      GpuWorkspace workspace(cuda::CrossEntropyWorkspaceBytes(rows));
      cuda::CrossEntropyRescale(rows, slice_max_there.data(), row_max_there.data(),
                                sums_there.data(), Gpu().compute());
      cuda::CrossEntropyLoss(rows, targets_there.data(), row_max_there.data(), sums_there.data(),
                             loss.data(), workspace.get(), Gpu().compute());
      workspace.Check();
      return loss.Read();
    };
    std::vector<double> rescaled = As<double>(sums);
    for (int row = 0; row < rows; ++row) {
      rescaled[2 * row] *= std::exp(static_cast<double>(slice_max[row]) - row_max[row]);
    }
    const double expected =
        loss_before + reference::CrossEntropyLoss<double>(
                          rows, targets.data(), As<double>(row_max).data(), rescaled.data());
    const std::vector<double> loss = run();
    CHECK(loss[0] == Approx(expected).epsilon(1e-6));
    CHECK(SameBits(loss, run()));
  }
}

const std::vector<int64_t> kCounts = {1, 3, 7, 64, 1000, 4097, 100003};

TEMPLATE_TEST_CASE("flat addition on the GPU rounds the exact sum", "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const int64_t count : kCounts) {
    for (const size_t offset : {0, 1}) {
      CAPTURE(count, offset);
      const auto x = NumbersOf<TestType>(count, 1);
      const auto y = NumbersOf<TestType>(count, 2);
      std::vector<float> expected(count);
      for (int64_t i = 0; i < count; ++i) expected[i] = x[i] + y[i];
      OnGpu<TestType> x_there(Store<TestType>(x), offset);
      OnGpu<TestType> y_there(Store<TestType>(y));
      cuda::AddInPlace<TestType>(count, x_there.data(), y_there.data(), Gpu().compute());
      CHECK(Load(y_there.Read()) == Load(Store<TestType>(expected)));
    }
  }
}

TEMPLATE_TEST_CASE("rows are copied and rounded from one stride to another on the GPU", "", float,
                   BFloat16) {
  if (!HasGpuOrSkips()) return;
  struct Case {
    int rows, columns, x_stride, y_stride;
  };
  for (const Case& c : std::vector<Case>{{1, 1, 1, 1}, {7, 12, 20, 16}, {5, 1100, 1101, 1200}}) {
    CAPTURE(c.rows, c.columns);
    const auto x = Numbers(size_t{1} * c.rows * c.x_stride, 1);
    const auto stored = Store<TestType>(x);
    auto expected = Store<TestType>(std::vector<float>(size_t{1} * c.rows * c.y_stride, 9.0f));
    OnGpu<float> x_there(x);
    OnGpu<TestType> stored_there(stored);
    OnGpu<TestType> rounded(expected);
    OnGpu<TestType> copied(expected);
    cuda::RoundRows<TestType>(c.rows, c.columns, x_there.data(), c.x_stride, rounded.data(),
                              c.y_stride, Gpu().compute());
    cuda::CopyRows<TestType>(c.rows, c.columns, stored_there.data(), c.x_stride, copied.data(),
                             c.y_stride, Gpu().compute());
    for (int row = 0; row < c.rows; ++row) {
      std::copy_n(stored.begin() + row * c.x_stride, c.columns,
                  expected.begin() + row * c.y_stride);
    }
    CHECK(SameBits(rounded.Read(), expected));
    CHECK(SameBits(copied.Read(), expected));
  }
}

TEST_CASE("conversions on the GPU round to nearest even, and keep NaN and infinity") {
  if (!HasGpuOrSkips()) return;
  for (const int64_t count : kCounts) {
    for (const size_t offset : {0, 1}) {
      CAPTURE(count, offset);
      auto x = Numbers(count, 1, 100);
      // Halfway between two bfloat16, once down and once up to the even one; too large for one.
      const std::vector<float> special = {0x1.01p0f, 0x1.03p0f, NAN, -kInfinity, 0x1.fffffep127f};
      for (size_t i = 0; i < special.size() && i < x.size(); ++i) x[i] = special[i];
      OnGpu<float> x_there(x, offset);
      OnGpu<BFloat16> y(count);
      cuda::ToBFloat16(count, x_there.data(), y.data(), Gpu().compute());
      const std::vector<BFloat16> rounded = y.Read();
      OnGpu<float> back(count, offset);
      cuda::ToFloat(count, y.data(), back.data(), Gpu().compute());
      const std::vector<float> widened = back.Read();
      size_t different = 0;
      for (int64_t i = 0; i < count; ++i) {
        const float expected = static_cast<float>(BFloat16(x[i]));
        const bool same = std::isnan(x[i]) ? std::isnan(static_cast<float>(rounded[i]))
                                           : static_cast<float>(rounded[i]) == expected;
        if (!same || std::isnan(widened[i]) != std::isnan(x[i]) ||
            (!std::isnan(x[i]) && widened[i] != expected)) {
          ++different;
        }
      }
      CHECK(different == 0);
    }
  }
}

// Some blocks owned, some decayed, some both.
std::vector<uint8_t> Flags(int64_t count) {
  std::vector<uint8_t> flags;
  for (const int32_t flag : Integers(count / kFlagBlock, 9, 0, 4)) {
    flags.push_back(static_cast<uint8_t>(flag));
  }
  return flags;
}

TEST_CASE("the sum of squares on the GPU counts owned blocks, and is the same twice") {
  if (!HasGpuOrSkips()) return;
  for (const int64_t count : {int64_t{0}, int64_t{64}, int64_t{64} * 77, int64_t{64} * 40000}) {
    CAPTURE(count);
    auto x = Numbers(count, 1, 10);
    const std::vector<uint8_t> flags = Flags(count);
    const double before = 3;
    double expected = before;
    for (int64_t i = 0; i < count; ++i) {
      if ((flags[i / kFlagBlock] & kOwned) == 0)
        x[i] = NAN;  // not looked at
      else
        expected += static_cast<double>(x[i]) * x[i];
    }
    const auto run = [&] {
      OnGpu<float> x_there(x);
      OnGpu<uint8_t> flags_there(flags);
      OnGpu<double> sum(std::vector<double>{before});
      GpuWorkspace workspace(cuda::SumOfSquaresWorkspaceBytes(count));
      cuda::SumOfSquares(count, x_there.data(), flags_there.data(), sum.data(), workspace.get(),
                         Gpu().compute());
      workspace.Check();
      return sum.Read();
    };
    const std::vector<double> sum = run();
    CHECK(sum[0] == Approx(expected).epsilon(1e-12));
    CHECK(SameBits(sum, run()));
  }
}

TEST_CASE("a step's control is decided on the GPU as on the host") {
  if (!HasGpuOrSkips()) return;
  for (const double sum_of_squares :
       {0.0, 4.0, 1e6, static_cast<double>(kInfinity), std::numeric_limits<double>::quiet_NaN()}) {
    for (const double max_norm : {0.0, 1.0}) {
      const StepLimits limits =
          GENERATE(StepLimits{}, StepLimits{.gradient_norm = 1.9}, StepLimits{.loss = 2.9});
      CAPTURE(sum_of_squares, max_norm);
      OnGpu<double> sum(std::vector<double>{sum_of_squares});
      OnGpu<double> loss(std::vector<double>{3.0});
      OnGpu<StepControl> control(1);
      cuda::DecideStep(sum.data(), loss.data(), max_norm, limits, control.data(), Gpu().compute());
      const StepControl actual = control.Read()[0];
      const StepControl expected = ControlStep(std::sqrt(sum_of_squares), 3.0, max_norm, limits);
      CHECK(actual.gradient_scale == Approx(expected.gradient_scale));
      CHECK(actual.skip == expected.skip);
    }
  }
}

TEST_CASE("numbers are added one after the other") {
  if (!HasGpuOrSkips()) return;
  OnGpu<double> x(std::vector<double>{1e16, 1, -1e16});
  OnGpu<double> sum(std::vector<double>{1.0});
  cuda::AddInOrder(3, x.data(), sum.data(), Gpu().compute());
  CHECK(sum.Read()[0] == 0);
}

TEST_CASE("dropout on the GPU drops what the mask says") {
  if (!HasGpuOrSkips()) return;
  constexpr int kRows = 9;
  constexpr int kColumns = 131;
  std::vector<float> x(kRows * kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
  std::vector<int64_t> tokens;
  for (int64_t row = 0; row < kRows; ++row) tokens.push_back((row << 33) + row);
  OnGpu<int64_t> tokens_there(tokens);
  OnGpu<float> x_there(x);
  const DropoutMask mask = {
      .probability = 0.5, .seed = 7, .layer = 5, .first_column = 6, .tokens = tokens_there.data()};
  for (const bool adds : {false, true}) {
    OnGpu<float> y(std::vector<float>(x.size(), 3.0f));
    cuda::Dropout<float>(kRows, kColumns, mask, adds, x_there.data(), y.data(), Gpu().compute());
    const std::vector<float> actual = y.Read();
    for (int i = 0; i < kRows * kColumns; ++i) {
      const int column = mask.first_column + i % kColumns;
      const PhiloxCounter bits = mask.Bits(tokens[i / kColumns], column / 4);
      const float kept = bits[column % 4] < mask.limit() ? 0 : 2 * x[i];
      CHECK(actual[i] == (adds ? 3 : 0) + kept);
    }
  }
}

// Weights, both moments, and the weights rounded to T.
template <typename T>
Outputs<float> AdamWOnGpu(int64_t count, const UpdateParameters& parameters,
                          const StepControl& control, const std::vector<float>& gradients,
                          const std::vector<float>& weights, const std::vector<float>& first,
                          const std::vector<float>& second) {
  OnGpu<AdamWFactors> factors_there(std::vector<AdamWFactors>{MakeAdamWFactors(parameters)});
  OnGpu<StepControl> control_there(std::vector<StepControl>{control});
  OnGpu<uint8_t> flags_there(Flags(count));
  OnGpu<float> gradients_there(gradients);
  OnGpu<float> master(weights);
  OnGpu<float> first_there(first);
  OnGpu<float> second_there(second);
  OnGpu<T> rounded(count);
  T* target = rounded.data();
  if constexpr (std::is_same_v<T, float>) target = master.data();
  cuda::AdamW<T>(count, factors_there.data(), control_there.data(), flags_there.data(),
                 gradients_there.data(), master.data(), target, first_there.data(),
                 second_there.data(), Gpu().compute());
  Outputs<float> result = {master.Read(), first_there.Read(), second_there.Read()};
  if constexpr (!std::is_same_v<T, float>) result.push_back(Load(rounded.Read()));
  return result;
}

TEMPLATE_TEST_CASE("AdamW on the GPU agrees with the reference", "", float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  UpdateParameters parameters;
  parameters.learning_rate = 1e-2;
  parameters.weight_decay = 0.1;
  parameters.step = 3;
  const float gradient_scale = 0.4f;
  for (const int64_t count : {int64_t{64}, int64_t{64} * 33, int64_t{64} * 1000}) {
    CAPTURE(count);
    const auto gradients = Numbers(count, 1);
    const auto weights = Numbers(count, 2);
    const auto first = Numbers(count, 3);
    auto second = Numbers(count, 4);
    for (float& value : second) value = std::abs(value);
    const std::vector<uint8_t> flags = Flags(count);
    Compare<float>(
        kForward,
        [&] {
          Outputs<float> result =
              AdamWOnGpu<TestType>(count, parameters, {gradient_scale, SkipReason::kNone},
                                   gradients, weights, first, second);
          if (result.size() > 3) {
            CHECK(result[3] == Load(Store<TestType>(result[0])));
            result.pop_back();
          }
          return result;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> result = {As<Real>(weights), As<Real>(first), As<Real>(second)};
          for (int64_t begin = 0; begin < count; begin += kFlagBlock) {
            UpdateParameters here = parameters;
            if ((flags[begin / kFlagBlock] & kDecayed) == 0) here.weight_decay = 0;
            reference::AdamW<Real>(kFlagBlock, here, Real{gradient_scale},
                                   As<Real>(gradients).data() + begin, result[0].data() + begin,
                                   result[1].data() + begin, result[2].data() + begin);
          }
          return result;
        });
  }
}

TEMPLATE_TEST_CASE("AdamW that leaves multiprocessors free has the bits of one that does not", "",
                   float, BFloat16) {
  if (!HasGpuOrSkips()) return;
  constexpr int64_t kCount = int64_t{64} * 300;  // five blocks' shares, the last not whole
  auto second = Numbers(kCount, 4);
  for (float& value : second) value = std::abs(value);
  const auto updated = [&](int left_free) {
    Gpu().compute().set_left_free(left_free);
    return AdamWOnGpu<TestType>(kCount, {.weight_decay = 0.1}, {0.4f, SkipReason::kNone},
                                Numbers(kCount, 1), Numbers(kCount, 2), Numbers(kCount, 3), second);
  };
  const Outputs<float> beside[] = {updated(1), updated(1000)};  // some blocks, and one
  CHECK((beside[0] == updated(0) && beside[1] == beside[0]));
}

TEST_CASE("AdamW on the GPU leaves everything as it is when the step is skipped") {
  if (!HasGpuOrSkips()) return;
  constexpr int64_t kCount = 64 * 5;
  const auto numbers = Numbers(kCount, 1);
  const std::vector<float> gradients(kCount, NAN);
  const Outputs<float> result =
      AdamWOnGpu<BFloat16>(kCount, UpdateParameters(), {0.0f, SkipReason::kNoNumber}, gradients,
                           numbers, numbers, numbers);
  for (int output = 0; output < 3; ++output) CHECK(result[output] == numbers);
  CHECK(std::isnan(result[3][0]));  // as it was
}

// Weights, momentum, direction; and the weights that were rounded, where they are others.
template <typename T>
Outputs<float> SgdOnGpu(int64_t count, bool nesterov, const StepControl& control,
                        const std::vector<float>& gradients, const std::vector<float>& weights,
                        float mass = 0.9f, bool keeps_momentum = true) {
  OnGpu<MomentumFactors> momentum_factors(std::vector<MomentumFactors>{{mass, 0.1f, nesterov}});
  OnGpu<DescentFactors> descent_factors(std::vector<DescentFactors>{{0.01f, 0.0f}});
  OnGpu<StepControl> control_there(std::vector<StepControl>{control});
  OnGpu<uint8_t> flags_there(Flags(count));
  OnGpu<float> direction(gradients);
  OnGpu<float> master(weights);
  OnGpu<float> momentum(gradients);
  OnGpu<T> rounded(count);
  T* target = rounded.data();
  if constexpr (std::is_same_v<T, float>) target = master.data();
  cuda::Momentum(count, momentum_factors.data(), control_there.data(), flags_there.data(),
                 master.data(), direction.data(), keeps_momentum ? momentum.data() : nullptr,
                 Gpu().compute());
  cuda::Descend<T>(count, descent_factors.data(), control_there.data(), flags_there.data(),
                   direction.data(), master.data(), target, Gpu().compute());
  Outputs<float> result = {master.Read(), momentum.Read()};
  if constexpr (!std::is_same_v<T, float>) result.push_back(Load(rounded.Read()));
  return result;
}

TEMPLATE_TEST_CASE("SGD on the GPU agrees with the reference, or leaves all as it is", "", float,
                   BFloat16) {
  if (!HasGpuOrSkips()) return;
  for (const bool nesterov : {false, true}) {
    for (const int64_t count : {int64_t{64}, int64_t{64} * 33, int64_t{64} * 1000}) {
      CAPTURE(nesterov, count);
      const auto gradients = Numbers(count, 1);
      const auto weights = Numbers(count, 2);
      const std::vector<uint8_t> flags = Flags(count);
      Compare<float>(
          kForward,
          [&] {
            auto result =
                SgdOnGpu<TestType>(count, nesterov, {0.4f, SkipReason::kNone}, gradients, weights);
            if (result.size() > 2) {
              CHECK(result[2] == Load(Store<TestType>(result[0])));
              result.pop_back();
            }
            return result;
          },
          [&](auto zero) {
            using Real = decltype(zero);
            Outputs<Real> result = {As<Real>(weights), As<Real>(gradients)};
            for (int64_t begin = 0; begin < count; begin += kFlagBlock) {
              UpdateParameters here;
              here.learning_rate = 0.01;
              here.nesterov = nesterov;
              here.weight_decay = (flags[begin / kFlagBlock] & kDecayed) == 0 ? 0 : 0.1;
              reference::Sgd<Real>(kFlagBlock, here, Real{0.4f}, As<Real>(gradients).data() + begin,
                                   result[0].data() + begin, result[1].data() + begin);
            }
            return result;
          });
    }
  }
  const auto numbers = Numbers(64, 1);
  const auto same = SgdOnGpu<TestType>(64, true, {0.0f, SkipReason::kNoNumber}, numbers, numbers);
  CHECK(same[0] == numbers);
  CHECK(same[1] == numbers);
  const StepControl goes = {0.4f, SkipReason::kNone};
  const auto without = SgdOnGpu<TestType>(64, false, goes, numbers, numbers, 0.0f, false);
  CHECK(without[0] == SgdOnGpu<TestType>(64, false, goes, numbers, numbers, 0.0f)[0]);
  CHECK(without[1] == numbers);
}

TEST_CASE("ops on the GPU without rows or elements do nothing") {
  if (!HasGpuOrSkips()) return;
  Stream& stream = Gpu().compute();
  float* const none = nullptr;
  cuda::RmsNormForward<float>(0, 8, none, none, none, 0, kInfinity, none, none, none, stream);
  cuda::RmsNormAgain<float>(0, 8, none, none, 0, none, none, stream);
  cuda::RmsNormBackward<float>(0, 8, none, none, 0, none, none, false, none, false, none,
                               Workspace(), stream);
  cuda::RopeApply<float>(0, 4, 1, 2, 2, 2, none, none, nullptr, nullptr, false, none, stream);
  cuda::ActivationForward<float>(Activation::kSwiglu, 0, 8, none, none, stream);
  cuda::ActivationBackward<float>(Activation::kSwiglu, 0, 8, none, none, none, stream);
  cuda::EmbeddingForward<float>(0, 8, 0, 8, nullptr, none, false, none, stream);
  cuda::EmbeddingBackward<float>(0, 8, 0, 8, nullptr, none, none, Workspace(), stream);
  cuda::CrossEntropyStatistics<float>(0, 0, 8, nullptr, none, none, none, stream);
  cuda::CrossEntropyRescale(0, none, none, none, stream);
  cuda::CrossEntropyLoss(0, nullptr, none, none, nullptr, Workspace(), stream);
  cuda::CrossEntropyGradient<float>(0, 0, 8, nullptr, none, none, none, none, stream);
  cuda::CrossEntropyAtOnce<float>(0, 0, 8, nullptr, none, none, none, none, stream);
  cuda::AddInPlace<float>(0, none, none, stream);
  cuda::CopyRows<float>(0, 8, none, 8, none, 8, stream);
  cuda::RoundRows<float>(0, 8, none, 8, none, 8, stream);
  cuda::ToBFloat16(0, none, nullptr, stream);
  cuda::ToFloat(0, nullptr, none, stream);
  cuda::Momentum(0, nullptr, nullptr, nullptr, none, none, none, stream);
  cuda::Descend<float>(0, nullptr, nullptr, nullptr, none, none, none, stream);
  cuda::AdamW<float>(0, nullptr, nullptr, nullptr, none, none, none, none, none, stream);
  REQUIRE_OK(Gpu().Synchronize(absl::Seconds(60)));
}

}  // namespace
}  // namespace convene::worker
