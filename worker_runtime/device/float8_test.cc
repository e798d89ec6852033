#include "worker_runtime/device/float8.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace convene::worker {
namespace {

constexpr DType kTypes[] = {DType::kE4M3, DType::kE5M2};

uint8_t Encode(DType dtype, float value) {
  return dtype == DType::kE4M3 ? EncodeFloat8<DType::kE4M3>(value)
                               : EncodeFloat8<DType::kE5M2>(value);
}

// The definition (OCP 8-bit Floating Point Specification 1.0, table 1), by powers of two.
double Defined(DType dtype, int code) {
  const bool is_e4m3 = dtype == DType::kE4M3;
  const int mantissa_bits = is_e4m3 ? 3 : 2;
  const int bias = is_e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = code >= 128 ? -1 : 1;
  if (is_e4m3 && (code & 0x7f) == 0x7f) return std::nan("");
  if (!is_e4m3 && exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

TEST_CASE("each code of an 8-bit float is decoded as its definition says, and encoded again") {
  for (const DType dtype : kTypes) {
    for (int code = 0; code < 256; ++code) {
      CAPTURE(DTypeName(dtype), code);
      const double defined = Defined(dtype, code);
      const float decoded = DecodeFloat8(dtype, static_cast<uint8_t>(code));
      if (std::isnan(defined)) {
        CHECK(std::isnan(decoded));
        CHECK(Encode(dtype, decoded) == 0x7f);
        continue;
      }
      CHECK(decoded == defined);
      CHECK(std::signbit(decoded) == std::signbit(defined));
      if (std::isfinite(defined)) CHECK(Encode(dtype, decoded) == code);
    }
  }
}

// The finite code nearest to the value; of two as near, the even one.
int Nearest(DType dtype, double value) {
  const int sign = std::signbit(value) ? 128 : 0;
  int nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 128; ++code) {
    const double candidate = Defined(dtype, code);
    if (!std::isfinite(candidate)) continue;
    // Of huge numbers a double would not tell the distances apart.
    const double distance = std::abs(std::min(std::abs(value), 1e6) - candidate);
    if (distance < least || (distance == least && code % 2 == 0)) {
      nearest = code;
      least = distance;
    }
  }
  return sign + nearest;
}

TEST_CASE("each bf16 number is rounded to the nearest 8-bit float, ties to even, and saturates") {
  for (const DType dtype : kTypes) {
    int wrong = 0;
    for (uint32_t bits = 0; bits < 1u << 16; ++bits) {
      const float value = __builtin_bit_cast(float, bits << 16);
      const int expected = std::isnan(value) ? 0x7f : Nearest(dtype, value);
      if (Encode(dtype, value) != expected) ++wrong;
    }
    CAPTURE(DTypeName(dtype));
    CHECK(wrong == 0);
  }
}

TEST_CASE("the last bit of a float decides beside a tie between two 8-bit floats") {
  for (const DType dtype : kTypes) {
    for (int code = 0; code + 1 < 128; ++code) {
      const double upper = Defined(dtype, code + 1);
      if (!std::isfinite(upper)) break;
      const auto middle = static_cast<float>((Defined(dtype, code) + upper) / 2);
      CAPTURE(DTypeName(dtype), code);
      CHECK(Encode(dtype, middle) == code + code % 2);
      CHECK(Encode(dtype, std::nextafter(middle, 0.0f)) == code);
      CHECK(Encode(dtype, -std::nextafter(middle, 1e9f)) == 128 + code + 1);
    }
  }
}

TEST_CASE("a scale makes a tensor's largest magnitude the type's, and shows broken tensors") {
  for (const DType dtype : kTypes) {
    const float largest = Float8ShapeOf(dtype).largest;
    CHECK(Float8Scale(dtype, largest) == 1);
    CHECK(Float8Scale(dtype, 2 * largest) == 0.5f);
    CHECK(Float8Scale(dtype, 0) == 1);
    CHECK(1 / Float8Scale(dtype, 1e-45f) >= std::numeric_limits<float>::min());
    CHECK(Float8Scale(dtype, std::numeric_limits<float>::infinity()) == 0);
    CHECK(std::isnan(Float8Scale(dtype, std::nanf(""))));
  }
}

}  // namespace
}  // namespace convene::worker
