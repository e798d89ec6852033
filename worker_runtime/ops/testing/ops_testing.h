// How every implementation of an op is judged: its error against the plain reference in double may
// be a small multiple of what the same plain reference makes in float. Nobody has to guess a
// tolerance.
#pragma once

#include <omp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker::testing {

inline constexpr double kForward = 2;
inline constexpr double kBackward = 3;

// Numbers between -1 and 1 that depend on the seed alone (splitmix64).
inline std::vector<float> Numbers(size_t count, uint64_t seed, float scale = 1.0f) {
  std::vector<float> result(count);
  uint64_t state = seed * 0x9E3779B97F4A7C15;
  for (float& value : result) {
    uint64_t z = state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    value = scale * (static_cast<float>(z >> 40) * 0x1p-23f - 1.0f);
  }
  return result;
}

// Whole numbers in [begin, end).
inline std::vector<int32_t> Integers(size_t count, uint64_t seed, int begin, int end) {
  std::vector<int32_t> result;
  for (const float number : Numbers(count, seed)) {
    const double fraction = (static_cast<double>(number) + 1.0) / 2.0;
    result.push_back(begin + static_cast<int32_t>(fraction * (end - begin)));
  }
  return result;
}

// Documents::begin of rows whose documents have these lengths, over and over, cut at each row's end
// (the rest goes on in the next row).
inline std::vector<int32_t> DocumentBegins(int batch, int sequence_length,
                                           const std::vector<int>& lengths) {
  std::vector<int32_t> begins;
  size_t document = 0;
  int left = lengths[0];
  for (int row = 0; row < batch; ++row) {
    int begin = 0;
    for (int position = 0; position < sequence_length; ++position) {
      if (left == 0) {
        begin = position;
        left = lengths[++document % lengths.size()];
      }
      begins.push_back(begin);
      --left;
    }
  }
  return begins;
}

template <typename Real>
std::vector<Real> As(const std::vector<float>& values) {
  return std::vector<Real>(values.begin(), values.end());
}

// How an op of element type T sees the values, and what it stored.
template <typename T>
std::vector<T> Store(const std::vector<float>& values) {
  std::vector<T> result;
  for (const float value : values) result.push_back(T(value));
  return result;
}
template <typename T>
std::vector<float> Load(const std::vector<T>& values) {
  std::vector<float> result;
  for (const T value : values) result.push_back(static_cast<float>(value));
  return result;
}

// Numbers that T holds exactly: every implementation starts from the same ones.
template <typename T>
std::vector<float> NumbersOf(size_t count, uint64_t seed, float scale = 1.0f) {
  return Load(Store<T>(Numbers(count, seed, scale)));
}

// An op must not depend on the content of its workspace: this one is full of NaN.
class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(size_t bytes)
      : memory_((bytes + sizeof(double) - 1) / sizeof(double),
                std::numeric_limits<double>::quiet_NaN()) {}
  Workspace get() { return {memory_.data(), memory_.size() * sizeof(double)}; }

 private:
  std::vector<double> memory_;
};

template <typename Real>
double Distance(const std::vector<Real>& values, const std::vector<double>& truth) {
  REQUIRE(values.size() == truth.size());
  double sum = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    const double difference = static_cast<double>(values[i]) - truth[i];
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

// One op's outputs, each judged alone: their scales differ.
template <typename Real>
using Outputs = std::vector<std::vector<Real>>;

// `implementation()` gives Outputs<float>; `reference(Real{})` gives Outputs<Real>. T is the type
// in which the op stores its outputs, all but those numbered in `float_outputs`. Also checks that
// the bits do not depend on the number of threads. `cancelled`: the length of float terms whose
// difference an output is, where they may all but cancel: then their rounding is left, and the
// plain computation, which rounds both alike, has none. (Small shapes get one thread: see
// teams_test.)
template <typename T, typename Implementation, typename Reference>
void Compare(double factor, const Implementation& implementation, const Reference& reference,
             const std::vector<size_t>& float_outputs = {}, double cancelled = 0) {
  const Outputs<double> truth = reference(double{});
  Outputs<float> plain = reference(float{});
#if defined(CONVENE_SANITIZER)
  const std::vector<int> thread_counts = {1};  // the OpenMP library is not instrumented
#else
  const std::vector<int> thread_counts = {1, 8};
#endif
  const int threads_before = omp_get_max_threads();
  Outputs<float> first;
  for (const int threads : thread_counts) {
    CAPTURE(threads);
    omp_set_num_threads(threads);
    const Outputs<float> actual = implementation();
    REQUIRE(actual.size() == truth.size());
    if (first.empty()) first = actual;
    for (size_t output = 0; output < truth.size(); ++output) {
      CAPTURE(output);
      const bool is_float =
          std::find(float_outputs.begin(), float_outputs.end(), output) != float_outputs.end();
      const auto rounded = is_float ? plain[output] : Load(Store<T>(plain[output]));
      // One unit in the last place: where the plain computation happens to be exact.
      const double unit = is_float || std::is_same_v<T, float>
                              ? static_cast<double>(std::numeric_limits<float>::epsilon())
                              : 0x1p-8;
      const double floor =
          unit * Distance(std::vector<double>(truth[output].size()), truth[output]) +
          std::numeric_limits<float>::epsilon() * cancelled;
      CHECK(Distance(actual[output], truth[output]) <=
            factor * Distance(rounded, truth[output]) + floor);
      CHECK((actual[output] == first[output]));  // thousands of numbers: not to be printed
    }
  }
  omp_set_num_threads(threads_before);
}

// Whether `backward(dy)` is the gradient of sum(dy * forward(x)), by central differences.
template <typename Forward, typename Backward>
void CheckGradient(const std::vector<double>& x, const Forward& forward, const Backward& backward) {
  const size_t outputs = forward(x).size();
  const std::vector<double> dy = As<double>(Numbers(outputs, 99));
  const std::vector<double> dx = backward(dy);
  REQUIRE(dx.size() == x.size());
  const double step = 1e-5;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto weighted_sum = [&](double moved) {
      std::vector<double> there = x;
      there[i] = moved;
      const std::vector<double> y = forward(there);
      double sum = 0;
      for (size_t j = 0; j < outputs; ++j) sum += dy[j] * y[j];
      return sum;
    };
    const double slope = (weighted_sum(x[i] + step) - weighted_sum(x[i] - step)) / (2 * step);
    CAPTURE(i);
    CHECK(dx[i] == Approx(slope).epsilon(1e-6).margin(1e-8));
  }
}

}  // namespace convene::worker::testing
