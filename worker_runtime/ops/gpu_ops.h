// The ops on a GPU of a program that is linked with them: cuda/link_ops.cc sets each pointer before
// main(). In any other program all are null; there nobody can have made a GPU's stream.
#pragma once

#include <string>

#include "worker_runtime/ops/matmul_choices.h"
#include "worker_runtime/ops/ops.h"

namespace convene::worker::gpu_ops {

inline void (*SetDeterministicMatMul)(bool is_deterministic) = nullptr;
inline void (*SetMatMulChoices)(MatMulChoices* choices) = nullptr;
inline std::string (*MatMulLibrary)() = nullptr;

#define CONVENE_OP(name, parameters, arguments) inline void(*name) parameters = nullptr;
#define CONVENE_TYPED_OP(name, parameters, arguments) \
  template <typename T>                               \
  inline void(*name) parameters = nullptr;
#define CONVENE_PAIR_OP(name, parameters, arguments) \
  template <typename In, typename Out>               \
  inline void(*name) parameters = nullptr;
#define CONVENE_SIZE(name, parameters, arguments) inline size_t(*name) parameters = nullptr;
#define CONVENE_TYPED_SIZE(name, parameters, arguments) \
  template <typename T>                                 \
  inline size_t(*name) parameters = nullptr;
#include "worker_runtime/ops/op_list.inc"
#undef CONVENE_OP
#undef CONVENE_TYPED_OP
#undef CONVENE_PAIR_OP
#undef CONVENE_SIZE
#undef CONVENE_TYPED_SIZE

}  // namespace convene::worker::gpu_ops
