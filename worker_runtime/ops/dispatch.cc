// From the contracts in this folder to the device that the stream belongs to, and on a CPU to the
// stream's thread.
#include "worker_runtime/ops/cpu/cpu_ops.h"
#ifdef CONVENE_CUDA
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#endif

#include "tools/base/check.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/ops/instantiate.h"

// In a program without CUDA nobody can have made a CUDA stream.
#ifdef CONVENE_CUDA
#define CONVENE_IF_CUDA(kind, statement) \
  if ((kind) == DeviceKind::kCuda) statement
#else
#define CONVENE_IF_CUDA(kind, statement) CONVENE_CHECK((kind) == DeviceKind::kCpu)
#endif

namespace convene::worker {
namespace {

// `op` of a CPU's stream: at once, or by the queue's thread.
template <typename Op>
void RunOnCpu(const char* name, const Stream& stream, const Op& op) {
  RunIn(stream, [name, profile = stream.profile(), op] {
    const OpScope scope(profile, name);
    Stream inner = Stream::Cpu();
    op(inner);
  });
}

#ifdef CONVENE_CUDA
template <typename Op>
void RunOnGpu(const char* name, const Stream& stream, const Op& op) {
  const OpScope scope(stream, name);
  op();
}
#endif

}  // namespace

// The copies of arguments that a queue takes along are those of values and of the structs that
// references name: what pointers name stays the caller's.
#define CONVENE_RUN(call)                                                                 \
  CONVENE_IF_CUDA(stream.kind(), return RunOnGpu(__func__, stream, [&] { cuda::call; })); \
  RunOnCpu(__func__, stream, [=](Stream& stream) { cpu::call; })

void SetDeterministicMatMul([[maybe_unused]] bool is_deterministic) {
#ifdef CONVENE_CUDA
  cuda::SetMatMulMode(is_deterministic ? cuda::MatMulMode::kDeterministic
                                       : cuda::MatMulMode::kTimed);
#endif
}

#define CONVENE_UNPACK(...) __VA_ARGS__
#define CONVENE_OP(name, parameters, arguments) \
  void name parameters { CONVENE_RUN(name arguments); }
#define CONVENE_TYPED_OP(name, parameters, arguments) \
  template <typename T>                               \
  CONVENE_OP(name, parameters, arguments)             \
  CONVENE_INSTANTIATE(name);
#define CONVENE_PAIR_OP(name, parameters, arguments) \
  template <typename In, typename Out>               \
  CONVENE_OP(name, parameters, arguments)            \
  CONVENE_INSTANTIATE_PRODUCT(name);
#define CONVENE_SIZE(name, parameters, arguments)             \
  size_t name(CONVENE_UNPACK parameters, DeviceKind device) { \
    CONVENE_IF_CUDA(device, return cuda::name arguments);     \
    return cpu::name arguments;                               \
  }
// NOLINTBEGIN(bugprone-macro-parentheses): an op's name cannot stand in parentheses
#define CONVENE_TYPED_SIZE(name, parameters, arguments)       \
  template <typename T>                                       \
  size_t name(CONVENE_UNPACK parameters, DeviceKind device) { \
    CONVENE_IF_CUDA(device, return cuda::name<T> arguments);  \
    return cpu::name<T> arguments;                            \
  }                                                           \
  CONVENE_INSTANTIATE(name);
// NOLINTEND(bugprone-macro-parentheses)
#include "worker_runtime/ops/op_list.inc"

}  // namespace convene::worker
