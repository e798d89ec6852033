// From the contracts in this folder to the device that the stream belongs to.
#include "worker_runtime/ops/cpu/cpu_ops.h"
#ifdef CONVENE_CUDA
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#endif

#include "tools/base/check.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/ops/instantiate.h"

// In a program without CUDA nobody can have made a CUDA stream.
#ifdef CONVENE_CUDA
#define CONVENE_DISPATCH(kind, call) return (kind) == DeviceKind::kCuda ? cuda::call : cpu::call
#else
#define CONVENE_DISPATCH(kind, call)         \
  CONVENE_CHECK((kind) == DeviceKind::kCpu); \
  return cpu::call
#endif

namespace convene::worker {

template <typename In, typename Out>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const In* a,
            const In* b, float beta, Out* c, Stream& stream) {
  const OpScope scope(stream, __func__);
  CONVENE_DISPATCH(stream.kind(), MatMul(transpose_a, transpose_b, m, n, k, a, b, beta, c, stream));
}
CONVENE_INSTANTIATE_PRODUCT(MatMul);

void SetDeterministicMatMul([[maybe_unused]] bool is_deterministic) {
#ifdef CONVENE_CUDA
  cuda::SetMatMulMode(is_deterministic ? cuda::MatMulMode::kDeterministic
                                       : cuda::MatMulMode::kTimed);
#endif
}

#define CONVENE_UNPACK(...) __VA_ARGS__
#define CONVENE_OP(name, parameters, arguments)      \
  void name parameters {                             \
    const OpScope scope(stream, __func__);           \
    CONVENE_DISPATCH(stream.kind(), name arguments); \
  }
#define CONVENE_TYPED_OP(name, parameters, arguments) \
  template <typename T>                               \
  CONVENE_OP(name, parameters, arguments)             \
  CONVENE_INSTANTIATE(name);
#define CONVENE_SIZE(name, parameters, arguments)             \
  size_t name(CONVENE_UNPACK parameters, DeviceKind device) { \
    CONVENE_DISPATCH(device, name arguments);                 \
  }
// NOLINTBEGIN(bugprone-macro-parentheses): an op's name cannot stand in parentheses
#define CONVENE_TYPED_SIZE(name, parameters, arguments)       \
  template <typename T>                                       \
  size_t name(CONVENE_UNPACK parameters, DeviceKind device) { \
    CONVENE_DISPATCH(device, name<T> arguments);              \
  }                                                           \
  CONVENE_INSTANTIATE(name);
// NOLINTEND(bugprone-macro-parentheses)
#include "worker_runtime/ops/op_list.inc"

}  // namespace convene::worker
