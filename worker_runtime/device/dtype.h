// The element types of tensors, and bfloat16: the upper half of a float.
#pragma once

#include <cstddef>
#include <cstdint>

// For the few lines of arithmetic that CPU and CUDA code share.
#ifdef __CUDACC__
#define CONVENE_HOST_DEVICE __host__ __device__
#else
#define CONVENE_HOST_DEVICE
#endif

namespace convene::worker {

// kE4M3, kE5M2: operands of products alone (float8.h). kInt32, kUInt8: of binned sums
// (ops/binned_sum.h), which ranks add up and take the maximum of.
enum class DType { kFloat32, kBFloat16, kFloat64, kE4M3, kE5M2, kInt32, kUInt8 };

// "fp32", "bf16", "fp64", "e4m3", "e5m2", "int32", "uint8".
constexpr const char* DTypeName(DType dtype) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp64", "e4m3", "e5m2", "int32", "uint8"};
  return kNames[static_cast<size_t>(dtype)];
}

constexpr size_t SizeOf(DType dtype) {
  constexpr size_t kBytes[] = {4, 2, 8, 1, 1, 4, 1};
  return kBytes[static_cast<size_t>(dtype)];
}

// Storage only: arithmetic is done in float. The same 16 bits as CUDA's __nv_bfloat16 and PyTorch's
// torch.bfloat16.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  // To nearest, ties to even; a NaN stays one (IEEE 754-2019, section 4.3.1).
  explicit BFloat16(float value) : bits(Round(value)) {}
  explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }

  // Always inlined: also inside the clones of ops/cpu/simd.h, into which gcc inlines nothing else.
  __attribute__((always_inline)) static uint16_t Round(float value) {
    const uint32_t word = __builtin_bit_cast(uint32_t, value);
    const uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
    // Rounding a NaN up could make it an infinity, or a zero: keep its upper half, made quiet.
    const uint32_t kept = (word & 0x7fffffffu) > 0x7f800000u ? word | 0x400000u : rounded;
    return static_cast<uint16_t>(kept >> 16);
  }
};
static_assert(sizeof(BFloat16) == 2);

constexpr DType DTypeOf(const float* /*data*/) { return DType::kFloat32; }
constexpr DType DTypeOf(const BFloat16* /*data*/) { return DType::kBFloat16; }
constexpr DType DTypeOf(const double* /*data*/) { return DType::kFloat64; }
constexpr DType DTypeOf(const int32_t* /*data*/) { return DType::kInt32; }
constexpr DType DTypeOf(const uint8_t* /*data*/) { return DType::kUInt8; }
template <typename T>
inline constexpr DType kDTypeOf = DTypeOf(static_cast<const T*>(nullptr));

}  // namespace convene::worker
