// The code of a template op for the types that tensors have.
#pragma once

#include "worker_runtime/device/dtype.h"

// In the namespace of `op`, behind its definition.
#define CONVENE_INSTANTIATE(op)           \
  template decltype(op<float>) op<float>; \
  template decltype(op<BFloat16>) op<BFloat16>

// The same for matrix products of <input, result>.
#define CONVENE_INSTANTIATE_PRODUCT(op)                             \
  template decltype(op<float, float>) op<float, float>;             \
  template decltype(op<BFloat16, BFloat16>) op<BFloat16, BFloat16>; \
  template decltype(op<BFloat16, float>) op<BFloat16, float>
