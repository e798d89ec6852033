// Shared by the memory-bound kernels: loads and stores of up to 16 bytes, conversions, and sums
// over warps and blocks in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstring>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/cuda/launch_geometry.h"

namespace convene::worker::cuda {

template <int kBytes>
struct RawOfBytes;
template <>
struct RawOfBytes<2> {
  using Type = unsigned short;  // NOLINT(google-runtime-int): what __ldg takes
};
template <>
struct RawOfBytes<4> {
  using Type = unsigned int;
};
template <>
struct RawOfBytes<8> {
  using Type = uint2;
};
template <>
struct RawOfBytes<16> {
  using Type = uint4;
};

// kWidth elements as they lie in memory: one access, and for bfloat16 half the registers of floats.
template <typename T, int kWidth>
struct Vector {
  using Raw = typename RawOfBytes<static_cast<int>(sizeof(T)) * kWidth>::Type;
  Raw raw;
};

template <int kWidth>
struct Floats {
  float values[kWidth];
  __device__ __forceinline__ float& operator[](int i) { return values[i]; }
  __device__ __forceinline__ float operator[](int i) const { return values[i]; }
};

// REQUIRES of all four: a multiple of kWidth elements' bytes.
template <int kWidth, typename T>
__device__ __forceinline__ Vector<T, kWidth> Load(const T* from) {
  return {*reinterpret_cast<const typename Vector<T, kWidth>::Raw*>(from)};
}
// For memory that no thread writes during the kernel: the load may move across stores.
template <int kWidth, typename T>
__device__ __forceinline__ Vector<T, kWidth> LoadConstant(const T* from) {
  return {__ldg(reinterpret_cast<const typename Vector<T, kWidth>::Raw*>(from))};
}
// One access for certain: the compiler takes a plain assignment of a uint4 apart now and then.
template <typename T, int kWidth>
__device__ __forceinline__ void Store(const Vector<T, kWidth>& vector, T* to) {
  __stwb(reinterpret_cast<typename Vector<T, kWidth>::Raw*>(to), vector.raw);
}

template <typename T, int kWidth>
__device__ __forceinline__ Floats<kWidth> Unpack(const Vector<T, kWidth>& vector) {
  Floats<kWidth> result;
  if constexpr (sizeof(T) == sizeof(float)) {
    std::memcpy(result.values, &vector.raw, sizeof(vector.raw));
  } else if constexpr (kWidth == 1) {
    result[0] = __uint_as_float(static_cast<unsigned int>(vector.raw) << 16);
  } else {
    unsigned int words[kWidth / 2];
    std::memcpy(words, &vector.raw, sizeof(vector.raw));
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      result[2 * i] = __uint_as_float(words[i] << 16);
      result[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  return result;
}

// Rounds to nearest, ties to even; a NaN stays one.
template <typename T, int kWidth>
__device__ __forceinline__ Vector<T, kWidth> Pack(const Floats<kWidth>& floats) {
  Vector<T, kWidth> result;
  if constexpr (sizeof(T) == sizeof(float)) {
    std::memcpy(&result.raw, floats.values, sizeof(result.raw));
  } else if constexpr (kWidth == 1) {
    result.raw = __bfloat16_as_ushort(__float2bfloat16_rn(floats[0]));
  } else {
    __nv_bfloat162 pairs[kWidth / 2];
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) {
      pairs[i] = __floats2bfloat162_rn(floats[2 * i], floats[2 * i + 1]);
    }
    std::memcpy(&result.raw, pairs, sizeof(result.raw));
  }
  return result;
}

template <typename T>
__device__ __forceinline__ float Widen(const T* from) {
  return Unpack(Load<1>(from))[0];
}
template <typename T>
__device__ __forceinline__ void Narrow(float value, T* to) {
  Store(Pack<T>(Floats<1>{{value}}), to);
}

// e^x. For T = bfloat16 to about two units in the last place of a float near 0, one more for each
// doubling of |x|, subnormals as zero: far below what rounding to T leaves, and a third of the
// instructions.
template <typename T>
__device__ __forceinline__ float Exp(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return expf(x);
  } else {
    constexpr float kLog2E = 1.4426950408889634f;
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * kLog2E));
    return result;
  }
}

// The whole warp takes part. Every lane gets the same sum.
template <typename Real>
__device__ __forceinline__ Real WarpSum(Real value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// The whole block, of blockDim.x threads (a multiple of 32), takes part; every thread gets the same
// sum. `scratch` is in shared memory, and the block must pass a barrier before it is used again.
template <typename Real>
__device__ __forceinline__ Real BlockSum(Real value, Real (&scratch)[kWarp]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = WarpSum(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return WarpSum(lane < warps ? scratch[lane] : Real{0});
}

}  // namespace convene::worker::cuda
