// PURE. The shape of a Llama-family model (RMSNorm, RoPE, grouped-query attention, SwiGLU; Touvron
// et al. 2023, Llama 3 herd 2024).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/ops/rope_scaling.h"

namespace convene::worker {

// Elements. Every tensor starts at a multiple of it in a rank's flat buffer (shard/placement.h): at
// a cache line in any type, and so that one flag can speak for each block of so many elements
// (ops/elementwise.h, kFlagBlock).
inline constexpr int64_t kParameterAlignment = 64;

struct ModelConfig {
  int layers = 0;
  int hidden_size = 0;
  int ffn_size = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  int vocabulary_size = 0;
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  bool tied_embeddings = false;
  double initializer_range = 0.02;
  RopeScaling rope_scaling;

  int64_t ParameterCount() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// The tensors that the backward pass computes again instead of reading them from memory (Chen et
// al. 2016; Korthikanti et al. 2022, section 5).
enum class Recompute {
  kNone,
  // The outputs of both norms and of SwiGLU: cheap passes over large tensors.
  kSelective,
  // All of the block but its input: one more forward pass.
  kFull,
};

// The named shapes, sorted: llama-tiny, llama-15m, llama-3.2-1b, ...
std::vector<std::string> ModelNames();

// NotFound for an unknown name; the text lists the known ones and the closest.
absl::StatusOr<ModelConfig> NamedModel(absl::string_view name);

// Whether the shape makes sense and can be split: positive sizes, heads divisible by kv_heads, an
// even head_size; heads, ffn and vocabulary divisible by tp; kv_heads divisible by tp, or tp by
// kv_heads, where so many neighbouring ranks hold the same key and value head. These ranks' query
// rows must then fill whole blocks of kParameterAlignment, since one rank alone owns the key and
// value rows behind them.
// InvalidArgument names the numbers and the legal values near them.
absl::Status ValidateModel(const ModelConfig& config, const Layout& layout);

}  // namespace convene::worker
