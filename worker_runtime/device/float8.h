// The two 8-bit floats of products (Micikevicius et al. 2022, "FP8 Formats for Deep Learning",
// section 3), and the scale of a tensor that takes them. Storage only: a byte a number.
//
//          exponent, mantissa   largest   infinity   for
//   E4M3          4, 3              448   none       activations and weights
//   E5M2          5, 2            57344   yes        gradients of a layer's outputs
//
// PURE.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"

namespace convene::worker {

struct Float8Shape {
  int mantissa_bits;
  int bias;
  float largest;  // finite
};
CONVENE_HOST_DEVICE constexpr Float8Shape Float8ShapeOf(DType dtype) {
  return dtype == DType::kE4M3 ? Float8Shape{3, 7, 448.0f} : Float8Shape{2, 15, 57344.0f};
}

// By what a tensor's numbers are multiplied before they are rounded, so that its largest magnitude
// becomes the type's: current scaling, as in NVIDIA's Transformer Engine (Float8CurrentScaling). 1
// for a tensor of zeros. At most 2^126, so that the inverse is no subnormal. A tensor with an
// infinity or a NaN gets 0 or NaN: then its products are NaN, and the broken step shows.
CONVENE_HOST_DEVICE inline float Float8Scale(DType dtype, float largest_magnitude) {
  constexpr float kMost = 0x1p126f;
  if (largest_magnitude == 0) return 1;
  const float scale = Float8ShapeOf(dtype).largest / largest_magnitude;
  return scale > kMost ? kMost : scale;
}

// To nearest, ties to even. Beyond the largest finite number: that number. NaN stays one. The bits
// of CUDA's __nv_cvt_float_to_fp8 with __NV_SATFINITE.
template <DType kType>
__attribute__((always_inline)) inline uint8_t EncodeFloat8(float value) {
  constexpr Float8Shape kShape = Float8ShapeOf(kType);
  constexpr int kShift = 23 - kShape.mantissa_bits;
  constexpr uint32_t kLargest = __builtin_bit_cast(uint32_t, kShape.largest);
  constexpr auto kExponent = [](int power) { return static_cast<uint32_t>(127 + power) << 23; };
  // Below the smallest normal number. A float as large as 2^23 of the smallest steps rounds to
  // such steps when it is added.
  constexpr uint32_t kNormal = kExponent(1 - kShape.bias);
  constexpr uint32_t kRounder = kExponent(1 - kShape.bias - kShape.mantissa_bits + 23);
  const uint32_t word = __builtin_bit_cast(uint32_t, value);
  const uint32_t magnitude = word & 0x7fffffffu;
  const uint32_t clamped = magnitude < kLargest ? magnitude : kLargest;
  const uint32_t rounded = clamped + ((1u << (kShift - 1)) - 1) + ((clamped >> kShift) & 1u);
  const uint32_t normal =
      (rounded >> kShift) - (static_cast<uint32_t>(127 - kShape.bias) << kShape.mantissa_bits);
  const float shifted = __builtin_bit_cast(float, clamped) + __builtin_bit_cast(float, kRounder);
  const uint32_t subnormal = __builtin_bit_cast(uint32_t, shifted) - kRounder;
  const uint32_t code = (clamped < kNormal ? subnormal : normal) | ((word >> 24) & 0x80u);
  return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : code);
}

constexpr float DecodeFloat8(DType dtype, uint8_t code) {
  const Float8Shape shape = Float8ShapeOf(dtype);
  const int mantissa_bits = shape.mantissa_bits;
  const uint32_t sign = (code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  const bool is_e4m3 = dtype == DType::kE4M3;
  const uint32_t infinity = is_e4m3 ? 0x7f : 0x7c;
  if (magnitude > infinity || (is_e4m3 && magnitude == infinity)) return __builtin_nanf("");
  if (magnitude == infinity) return __builtin_bit_cast(float, sign | 0x7f800000u);
  const uint32_t first_normal = 1u << mantissa_bits;
  if (magnitude >= first_normal) {
    const uint32_t word =
        (magnitude << (23 - mantissa_bits)) + (static_cast<uint32_t>(127 - shape.bias) << 23);
    return __builtin_bit_cast(float, sign | word);
  }
  const float step =
      __builtin_bit_cast(float, static_cast<uint32_t>(127 + 1 - shape.bias - mantissa_bits) << 23);
  const float value = static_cast<float>(magnitude) * step;
  return sign != 0 ? -value : value;
}

}  // namespace convene::worker
