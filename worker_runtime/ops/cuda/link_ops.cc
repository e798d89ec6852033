// Gives the ops of this folder to a program that is linked with them.
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#include "worker_runtime/ops/gpu_ops.h"

namespace convene::worker::cuda {
namespace {

// NOLINTBEGIN(bugprone-macro-parentheses): an op's name cannot stand in parentheses
#define CONVENE_OP(name, parameters, arguments) gpu_ops::name = name;
#define CONVENE_TYPED_OP(name, parameters, arguments) \
  gpu_ops::name<float> = name<float>;                 \
  gpu_ops::name<BFloat16> = name<BFloat16>;
#define CONVENE_PAIR_OP(name, parameters, arguments)            \
  gpu_ops::name<float, float> = name<float, float>;             \
  gpu_ops::name<BFloat16, BFloat16> = name<BFloat16, BFloat16>; \
  gpu_ops::name<BFloat16, float> = name<BFloat16, float>;
#define CONVENE_SIZE CONVENE_OP
#define CONVENE_TYPED_SIZE CONVENE_TYPED_OP
// NOLINTEND(bugprone-macro-parentheses)

[[maybe_unused]] const bool is_linked = [] {
#include "worker_runtime/ops/op_list.inc"
  gpu_ops::SetDeterministicMatMul = [](bool is_deterministic) {
    SetMatMulMode(is_deterministic ? MatMulMode::kDeterministic : MatMulMode::kTimed);
  };
  gpu_ops::SetMatMulChoices = SetMatMulChoices;
  gpu_ops::MatMulLibrary = CublasLtVersion;
  return true;
}();

}  // namespace
}  // namespace convene::worker::cuda
