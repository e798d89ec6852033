// From the contracts in this folder to the device that the stream belongs to, and on a CPU to the
// stream's thread.
#include "tools/base/check.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/gpu_ops.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/matmul_choices.h"

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

template <typename Op>
void RunOnGpu(const char* name, const Stream& stream, const Op& op) {
  const OpScope scope(stream, name);
  op();
}

template <typename Op>
Op* Linked(Op* op) {
  CONVENE_CHECK(op != nullptr);
  return op;
}

}  // namespace

// The last argument is the op of its types on a GPU. The copies of arguments that a queue takes
// along are those of values and of the structs that references name: what pointers name stays the
// caller's.
#define CONVENE_RUN(name, arguments, ...)                                               \
  if (stream.kind() == DeviceKind::kCuda) {                                             \
    return RunOnGpu(__func__, stream, [&] { Linked(gpu_ops::__VA_ARGS__) arguments; }); \
  }                                                                                     \
  RunOnCpu(__func__, stream, [=](Stream& stream) { cpu::name arguments; })

void SetDeterministicMatMul(bool is_deterministic) {
  if (gpu_ops::SetDeterministicMatMul != nullptr) gpu_ops::SetDeterministicMatMul(is_deterministic);
}

ScopedMatMulChoices::ScopedMatMulChoices(MatMulChoices* choices) {
  if (gpu_ops::SetMatMulChoices != nullptr) gpu_ops::SetMatMulChoices(choices);
}
ScopedMatMulChoices::~ScopedMatMulChoices() {
  if (gpu_ops::SetMatMulChoices != nullptr) gpu_ops::SetMatMulChoices(nullptr);
}

std::string MatMulLibrary() {
  return gpu_ops::MatMulLibrary != nullptr ? gpu_ops::MatMulLibrary() : "";
}

// NOLINTBEGIN(bugprone-macro-parentheses): an op's name cannot stand in parentheses
#define CONVENE_UNPACK(...) __VA_ARGS__
#define CONVENE_OP(name, parameters, arguments) \
  void name parameters { CONVENE_RUN(name, arguments, name); }
#define CONVENE_TYPED_OP(name, parameters, arguments) \
  template <typename T>                               \
  void name parameters {                              \
    CONVENE_RUN(name, arguments, name<T>);            \
  }                                                   \
  CONVENE_INSTANTIATE(name);
#define CONVENE_PAIR_OP(name, parameters, arguments) \
  template <typename In, typename Out>               \
  void name parameters {                             \
    CONVENE_RUN(name, arguments, name<In, Out>);     \
  }                                                  \
  CONVENE_INSTANTIATE_PRODUCT(name);
#define CONVENE_SIZE(name, parameters, arguments)                            \
  size_t name(CONVENE_UNPACK parameters, DeviceKind device) {                \
    if (device == DeviceKind::kCuda) return Linked(gpu_ops::name) arguments; \
    return cpu::name arguments;                                              \
  }
#define CONVENE_TYPED_SIZE(name, parameters, arguments)                         \
  template <typename T>                                                         \
  size_t name(CONVENE_UNPACK parameters, DeviceKind device) {                   \
    if (device == DeviceKind::kCuda) return Linked(gpu_ops::name<T>) arguments; \
    return cpu::name<T> arguments;                                              \
  }                                                                             \
  CONVENE_INSTANTIATE(name);
// NOLINTEND(bugprone-macro-parentheses)
#include "worker_runtime/ops/op_list.inc"

}  // namespace convene::worker
