// The ops of 8-bit floats on every device, against the definition of float8.h and products in
// double.
#include "worker_runtime/ops/float8.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::Compare;
using testing::DeviceArray;
using testing::kForward;
using testing::Load;
using testing::NumbersOf;
using testing::Outputs;
using testing::Store;

constexpr DType kTypes[] = {DType::kE4M3, DType::kE5M2};

Device& TheDevice() {
  static const std::unique_ptr<Device> device = testing::MakeTestDevice();
  return *device;
}

uint8_t Encode(DType dtype, float value) {
  return dtype == DType::kE4M3 ? EncodeFloat8<DType::kE4M3>(value)
                               : EncodeFloat8<DType::kE5M2>(value);
}

template <typename T>
float LargestOf(const std::vector<float>& values, size_t first) {
  const DeviceArray<T> x(Store<T>(values), TheDevice());
  const DeviceArray<float> largest({-1}, TheDevice());
  LargestMagnitude(static_cast<int64_t>(values.size() - first), x.data() + first, largest.data(),
                   TheDevice().compute());
  return largest.Fetch()[0];
}

TEMPLATE_TEST_CASE("the largest magnitude of any count, at any address", "", float, BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const size_t count : {1, 7, 64, 1000, 4096, 50001}) {
    for (const size_t first : {0, 1}) {
      if (count <= first) continue;
      CAPTURE(count, first);
      std::vector<float> values = NumbersOf<TestType>(count, 1);
      // Wherever the largest lies, and whatever its sign.
      for (const size_t place : {first, (first + count) / 2, count - 1}) {
        std::vector<float> with = values;
        with[place] = -3;
        CHECK(LargestOf<TestType>(with, first) == 3);
        with[place] = -std::numeric_limits<float>::infinity();
        CHECK(std::isinf(LargestOf<TestType>(with, first)));
        with[place] = std::nanf("");
        CHECK(std::isnan(LargestOf<TestType>(with, first)));
      }
      CHECK(LargestOf<TestType>(std::vector<float>(count, -0.0f), first) == 0);
    }
  }
}

struct Rounded {
  std::vector<uint8_t> codes, turned;
  float inverse = 0;
};

template <typename T>
Rounded Round(int rows, int columns, const std::vector<float>& values, size_t first, DType dtype,
              float largest, bool wants_codes, bool wants_turned) {
  const size_t count = static_cast<size_t>(rows) * columns;
  std::vector<float> shifted(first, 9);
  shifted.insert(shifted.end(), values.begin(), values.end());
  const DeviceArray<T> x(Store<T>(shifted), TheDevice());
  const DeviceArray<float> numbers({largest, -1}, TheDevice());
  const std::vector<uint8_t> poison(count, 0x55);
  const DeviceArray<uint8_t> codes(poison, TheDevice());
  const DeviceArray<uint8_t> turned(poison, TheDevice());
  QuantizeFloat8(rows, columns, x.data() + first, dtype, numbers.data(), numbers.data() + 1,
                 wants_codes ? codes.data() : nullptr, wants_turned ? turned.data() : nullptr,
                 TheDevice().compute());
  return {codes.Fetch(), turned.Fetch(), numbers.Fetch()[1]};
}

TEMPLATE_TEST_CASE("a tensor is rounded by its scale, plain and turned round", "", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{
           {16, 16}, {16, 272}, {272, 16}, {64, 64}, {80, 176}, {128, 64}}) {
    const size_t count = static_cast<size_t>(rows) * columns;
    // Over many orders of magnitude, so that both types have subnormals among them.
    std::vector<float> values = NumbersOf<TestType>(count, 2);
    for (size_t i = 0; i < count; i += 3) values[i] *= std::ldexp(1.0f, -static_cast<int>(i % 24));
    values[count / 2] = 1.5f;  // above what is called the largest: saturates
    values = Load(Store<TestType>(values));
    constexpr float kLargest = 0.9f;
    for (const DType dtype : kTypes) {
      const float scale = Float8Scale(dtype, kLargest);
      std::vector<uint8_t> expected(count), expected_turned(count);
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column) {
          const size_t at = static_cast<size_t>(row) * columns + column;
          expected[at] = Encode(dtype, values[at] * scale);
          expected_turned[static_cast<size_t>(column) * rows + row] = expected[at];
        }
      }
      for (const size_t first : {0, 1}) {
        CAPTURE(rows, columns, DTypeName(dtype), first);
        const Rounded both =
            Round<TestType>(rows, columns, values, first, dtype, kLargest, true, true);
        CHECK((both.codes == expected));
        CHECK((both.turned == expected_turned));
        CHECK(both.inverse == 1 / scale);
        const Rounded plain =
            Round<TestType>(rows, columns, values, first, dtype, kLargest, true, false);
        CHECK((plain.codes == expected));
        CHECK((plain.turned == std::vector<uint8_t>(count, 0x55)));
        const Rounded turned =
            Round<TestType>(rows, columns, values, first, dtype, kLargest, false, true);
        CHECK((turned.codes == std::vector<uint8_t>(count, 0x55)));
        CHECK((turned.turned == expected_turned));
      }
    }
  }
}

// Codes of all finite numbers.
std::vector<uint8_t> SomeCodes(DType dtype, size_t count, uint64_t seed) {
  std::vector<uint8_t> codes;
  for (const float number : NumbersOf<float>(count, seed)) codes.push_back(Encode(dtype, number));
  return codes;
}

TEMPLATE_TEST_CASE("products of 8-bit floats agree with the reference in double", "", float,
                   BFloat16) {
  if (!testing::HasPlacesOrSkips(1)) return;
  struct Shape {
    int m, n, k;
  };
  for (const Shape& shape : {Shape{16, 16, 16}, Shape{48, 80, 32}, Shape{32, 16, 528}}) {
    const int m = shape.m;
    const int n = shape.n;
    const int k = shape.k;
    for (const DType type_a : {DType::kE4M3, DType::kE5M2}) {
      constexpr DType kTypeB = DType::kE4M3;
      for (const float beta : {0.0f, 1.0f}) {
        CAPTURE(m, n, k, DTypeName(type_a), beta);
        const std::vector<uint8_t> a = SomeCodes(type_a, static_cast<size_t>(m) * k, 1);
        const std::vector<uint8_t> b = SomeCodes(kTypeB, static_cast<size_t>(n) * k, 2);
        const size_t count = static_cast<size_t>(m) * n;
        const std::vector<float> c =
            beta == 0 ? std::vector<float>(count, std::nanf("")) : NumbersOf<TestType>(count, 3);
        constexpr float kInverseA = 0.75f;
        constexpr float kInverseB = 0.01f;
        Compare<TestType>(
            kForward,
            [&] {
              const DeviceArray<uint8_t> there_a(a, TheDevice()), there_b(b, TheDevice());
              const DeviceArray<float> inverses({kInverseA, kInverseB}, TheDevice());
              const DeviceArray<TestType> there_c(Store<TestType>(c), TheDevice());
              Float8MatMul(m, n, k, {there_a.data(), inverses.data(), type_a},
                           {there_b.data(), inverses.data() + 1, kTypeB}, Float8Sums::kExact, beta,
                           there_c.data(), TheDevice().compute());
              return Outputs<float>{Load(there_c.Fetch())};
            },
            [&](auto zero) {
              using Real = decltype(zero);
              // The scales on one side: a CPU may do so too.
              const Real scale = Real{kInverseA} * Real{kInverseB};
              std::vector<Real> result;
              for (int i = 0; i < m; ++i) {
                for (int j = 0; j < n; ++j) {
                  Real sum = 0;
                  for (int l = 0; l < k; ++l) {
                    sum += Real{DecodeFloat8(type_a, a[static_cast<size_t>(i) * k + l])} * scale *
                           Real{DecodeFloat8(kTypeB, b[static_cast<size_t>(j) * k + l])};
                  }
                  if (beta != 0) sum += Real{c[static_cast<size_t>(i) * n + j]};
                  result.push_back(sum);
                }
              }
              return Outputs<Real>{result};
            });
      }
    }
  }
}

TEST_CASE("a tensor with an infinity gives products that are no numbers") {
  if (!testing::HasPlacesOrSkips(1)) return;
  constexpr int kSize = 16;
  std::vector<float> values = NumbersOf<float>(kSize * kSize, 1);
  values[5] = std::numeric_limits<float>::infinity();
  const Rounded a =
      Round<float>(kSize, kSize, values, 0, DType::kE4M3, LargestOf<float>(values, 0), true, false);
  const DeviceArray<uint8_t> codes(a.codes, TheDevice());
  const DeviceArray<float> inverses({a.inverse, 1}, TheDevice());
  const DeviceArray<float> c(std::vector<float>(kSize * kSize), TheDevice());
  Float8MatMul(kSize, kSize, kSize, {codes.data(), inverses.data(), DType::kE4M3},
               {codes.data(), inverses.data() + 1, DType::kE4M3}, Float8Sums::kFast, 0, c.data(),
               TheDevice().compute());
  for (const float value : c.Fetch()) CHECK(!std::isfinite(value));
}

}  // namespace
}  // namespace convene::worker
