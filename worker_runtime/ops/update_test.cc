// The updates of weights on the CPU, against plain references in float and double.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/muon.h"
#include "worker_runtime/ops/sgd.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/adamw.h"
#include "worker_runtime/ops/testing/reference/sgd.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {
namespace {

using testing::As;
using testing::Compare;
using testing::kForward;
using testing::Load;
using testing::Numbers;
using testing::Outputs;
using testing::Store;

Stream& AnyStream() {
  static Stream stream = Stream::Cpu();
  return stream;
}

TEST_CASE("a step is controlled by its gradients' norm") {
  const auto decide = [](double sum_of_squares, double max_norm, const StepLimits& limits = {}) {
    const double loss = 3;
    StepControl control = {-1, static_cast<SkipReason>(-1)};
    DecideStep(&sum_of_squares, &loss, max_norm, limits, &control, AnyStream());
    return control;
  };
  CHECK(decide(4.0, 0).gradient_scale == 1.0f);
  CHECK(decide(1e60, 0).gradient_scale == 1.0f);
  CHECK(decide(4.0, 3).gradient_scale == 1.0f);
  CHECK(decide(0.0, 1).gradient_scale == 1.0f);
  CHECK(decide(16.0, 1).gradient_scale == Approx(1.0 / 4.000001));
  CHECK(decide(4.0, 1).skip == SkipReason::kNone);
  CHECK(decide(std::numeric_limits<double>::infinity(), 1).skip == SkipReason::kNoNumber);
  CHECK(decide(std::numeric_limits<double>::infinity(), 1).gradient_scale == 0.0f);
  CHECK(decide(std::nan(""), 0).skip == SkipReason::kNoNumber);
  CHECK(decide(4.0, 0, {.gradient_norm = 2.0}).skip == SkipReason::kNone);
  CHECK(decide(4.0, 0, {.gradient_norm = 1.9}).skip == SkipReason::kGradientSpike);
  CHECK(decide(4.0, 0, {.loss = 3.0}).skip == SkipReason::kNone);
  CHECK(decide(4.0, 0, {.loss = 2.9}).skip == SkipReason::kLossSpike);
}

TEMPLATE_TEST_CASE("AdamW agrees with the reference over its first steps", "", float, BFloat16) {
  for (const int64_t count : {64, 128, 20032}) {
    CAPTURE(count);
    UpdateParameters parameters;
    parameters.learning_rate = 0.01;
    parameters.weight_decay = 0.1;
    const StepControl control = {0.5f, SkipReason::kNone};
    const auto weights = Numbers(count, 1);
    std::vector<uint8_t> flags(count / kFlagBlock);
    for (size_t i = 0; i < flags.size(); ++i) flags[i] = i % 3 == 1 ? kOwned : kOwned | kDecayed;
    constexpr int kSteps = 3;
    std::vector<TestType> rounded(count);
    Compare<float>(
        kForward,
        [&] {
          Outputs<float> y = {weights, std::vector<float>(count), std::vector<float>(count)};
          for (int step = 1; step <= kSteps; ++step) {
            parameters.step = step;
            const AdamWFactors factors = MakeAdamWFactors(parameters);
            TestType* target = rounded.data();
            if constexpr (std::is_same_v<TestType, float>) target = y[0].data();
            AdamW(count, &factors, &control, flags.data(), Numbers(count, 10 + step).data(),
                  y[0].data(), target, y[1].data(), y[2].data(), AnyStream());
          }
          if (std::is_same_v<TestType, BFloat16>) {
            CHECK(Load(rounded) == Load(Store<TestType>(y[0])));
          }
          return y;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(weights), std::vector<Real>(count), std::vector<Real>(count)};
          for (int step = 1; step <= kSteps; ++step) {
            for (int64_t i = 0; i < count; i += kFlagBlock) {
              auto now = parameters;
              now.step = step;
              if ((flags[i / kFlagBlock] & kDecayed) == 0) now.weight_decay = 0;
              reference::AdamW<Real>(kFlagBlock, now, Real{0.5},
                                     As<Real>(Numbers(count, 10 + step)).data() + i,
                                     y[0].data() + i, y[1].data() + i, y[2].data() + i);
            }
          }
          return y;
        });
  }
}

TEMPLATE_TEST_CASE("SGD in halves agrees with the reference over its first steps", "", float,
                   BFloat16) {
  for (const bool nesterov : {false, true}) {
    CAPTURE(nesterov);
    constexpr int64_t kCount = 20032;
    UpdateParameters parameters;
    parameters.learning_rate = 0.01;
    parameters.weight_decay = 0.1;
    parameters.nesterov = nesterov;
    const MomentumFactors momentum = {.momentum = 0.9f, .decay = 0.1f, .nesterov = nesterov};
    const DescentFactors descent = {.step_size = 0.01f, .decay = 0};
    const StepControl control = {0.5f, SkipReason::kNone};
    const auto weights = Numbers(kCount, 1);
    std::vector<uint8_t> flags(kCount / kFlagBlock);
    for (size_t i = 0; i < flags.size(); ++i) flags[i] = i % 3 == 1 ? kOwned : kOwned | kDecayed;
    constexpr int kSteps = 3;
    std::vector<TestType> rounded(kCount);
    Compare<float>(
        kForward,
        [&] {
          Outputs<float> y = {weights, std::vector<float>(kCount)};
          for (int step = 1; step <= kSteps; ++step) {
            TestType* target = rounded.data();
            if constexpr (std::is_same_v<TestType, float>) target = y[0].data();
            auto direction = Numbers(kCount, 10 + step);
            Momentum(kCount, &momentum, &control, flags.data(), y[0].data(), direction.data(),
                     y[1].data(), AnyStream());
            Descend(kCount, &descent, &control, flags.data(), direction.data(), y[0].data(), target,
                    AnyStream());
          }
          if (std::is_same_v<TestType, BFloat16>) {
            CHECK(Load(rounded) == Load(Store<TestType>(y[0])));
          }
          return y;
        },
        [&](auto zero) {
          using Real = decltype(zero);
          Outputs<Real> y = {As<Real>(weights), std::vector<Real>(kCount)};
          for (int step = 1; step <= kSteps; ++step) {
            for (int64_t i = 0; i < kCount; i += kFlagBlock) {
              auto now = parameters;
              if ((flags[i / kFlagBlock] & kDecayed) == 0) now.weight_decay = 0;
              reference::Sgd<Real>(kFlagBlock, now, Real{0.5},
                                   As<Real>(Numbers(kCount, 10 + step)).data() + i, y[0].data() + i,
                                   y[1].data() + i);
            }
          }
          return y;
        });
  }
}

TEST_CASE("a step that SGD skips changes nothing, and a direction's decay pulls weights down") {
  const auto before = Numbers(128, 1);
  Outputs<float> y = {before, before, before};
  const MomentumFactors momentum = {0.9f, 0.1f, 1};
  const DescentFactors descent = {.step_size = 0.5f, .decay = 0.25f};
  const std::vector<uint8_t> flags = {kDecayed, 0};
  const StepControl skips = {0, SkipReason::kNoNumber};
  Momentum(128, &momentum, &skips, flags.data(), y[0].data(), y[1].data(), y[2].data(),
           AnyStream());
  Descend(128, &descent, &skips, flags.data(), y[1].data(), y[0].data(), y[0].data(), AnyStream());
  CHECK(y == Outputs<float>{before, before, before});
  const std::vector<float> nothing(128);
  const StepControl goes = {1.0f, SkipReason::kNone};
  Descend(128, &descent, &goes, flags.data(), nothing.data(), y[0].data(), y[0].data(),
          AnyStream());
  for (int i = 0; i < 128; ++i) CHECK(y[0][i] == Approx(before[i] * (i < 64 ? 0.875 : 1.0)));
}

TEST_CASE("SGD without momentum steps as momentum 0 does, and needs no array for it") {
  const MomentumFactors factors = {.momentum = 0, .decay = 0.1f, .nesterov = 0};
  const StepControl control = {0.5f, SkipReason::kNone};
  const std::vector<uint8_t> flags = {kDecayed, 0};
  const auto weights = Numbers(128, 1);
  std::vector<float> with = Numbers(128, 2), without = with, momentum = Numbers(128, 3);
  Momentum(128, &factors, &control, flags.data(), weights.data(), with.data(), momentum.data(),
           AnyStream());
  Momentum(128, &factors, &control, flags.data(), weights.data(), without.data(), nullptr,
           AnyStream());
  CHECK(without == with);
  CHECK(without != Numbers(128, 2));
}

TEST_CASE("a skipped step changes neither weights nor moments") {
  const auto before = Numbers(128, 1);
  Outputs<float> y = {before, before, before};
  const AdamWFactors factors = MakeAdamWFactors({.learning_rate = 0.1});
  const StepControl control = {0, SkipReason::kNoNumber};
  const std::vector<uint8_t> flags = {kDecayed, kDecayed};
  std::vector<BFloat16> weights = Store<BFloat16>(before);
  AdamW(128, &factors, &control, flags.data(), Numbers(128, 2).data(), y[0].data(), weights.data(),
        y[1].data(), y[2].data(), AnyStream());
  CHECK(y == Outputs<float>{before, before, before});
  CHECK(Load(weights) == Load(Store<BFloat16>(before)));
}

// Over one block of the loop and over several, with an end that fills none.
TEMPLATE_TEST_CASE("Muon scales to length 1, but a matrix of nearly nothing not so far", "", float,
                   BFloat16) {
  for (const int64_t count : {1, 77, 40'001}) {
    CAPTURE(count);
    const std::vector<float> x = Numbers(count, 1);
    for (const double length : {4.0, 0.25, 1e-9, 0.0}) {
      const double sum_of_squares = length * length;
      std::vector<TestType> y(count);
      ScaleToUnit(count, x.data(), &sum_of_squares, y.data(), AnyStream());
      const auto scale = static_cast<float>(1 / std::max(length, 1e-7));
      std::vector<float> expected;
      for (const float value : x) expected.push_back(value * scale);
      CHECK(Load(y) == Load(Store<TestType>(expected)));
    }
  }
}

TEMPLATE_TEST_CASE("Muon's sum of two matrices is rounded once", "", float, BFloat16) {
  for (const int64_t count : {1, 77, 40'001}) {
    CAPTURE(count);
    const auto x = Store<TestType>(Numbers(count, 1));
    const std::vector<float> y = Numbers(count, 2);
    std::vector<TestType> result = x;
    Combine(count, 3.4445f, -4.775f, y.data(), result.data(), AnyStream());
    const std::vector<float> before = Load(x);
    const std::vector<float> after = Load(result);
    constexpr double kHalfUlp = std::is_same_v<TestType, float> ? 0x1p-23 : 0x1p-8;
    for (int64_t i = 0; i < count; ++i) {
      const double expected = 3.4445 * before[i] - 4.775 * y[i];
      // The float sum has an error of its own, of the size of its parts.
      CHECK(std::abs(after[i] - expected) <= kHalfUlp * std::abs(expected) + 1e-6);
    }
  }
}

}  // namespace
}  // namespace convene::worker
