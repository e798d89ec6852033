// Stands for CUDA's header of that name (cuda_runtime.h beside it).
#pragma once

#include "cuda_runtime.h"
#include "worker_runtime/device/float8.h"

// NOLINTBEGIN: CUDA's names

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
typedef unsigned short __nv_fp8x2_storage_t;  // x in the lower byte

inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 pair, __nv_saturation_t /*saturates*/,
                                                     __nv_fp8_interpretation_t format) {
  using convene::worker::DType;
  const auto encode = [format](float value) -> unsigned {
    return format == __NV_E4M3 ? convene::worker::EncodeFloat8<DType::kE4M3>(value)
                               : convene::worker::EncodeFloat8<DType::kE5M2>(value);
  };
  return static_cast<__nv_fp8x2_storage_t>(encode(pair.x) | (encode(pair.y) << 8));
}

// NOLINTEND
