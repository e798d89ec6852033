// PURE. The shape of a model: its family, and its sizes.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/adapter.h"
#include "worker_runtime/model/family.h"
#include "worker_runtime/ops/rope_scaling.h"

namespace convene::worker {

// Elements. Every tensor starts at a multiple of it in a rank's flat buffer (shard/placement.h): at
// a cache line in any type, and so that one flag can speak for each block of so many elements
// (ops/elementwise.h, kFlagBlock).
inline constexpr int64_t kParameterAlignment = 64;

// The experts of a model whose feed-forward networks are mixtures of them, and their router.
struct ExpertConfig {
  int count = 0;     // of a layer; 0: the model has none
  int chosen = 0;    // experts that a token goes to
  int ffn_size = 0;  // of each
  // The experts that every token goes to, as one network; 0: none.
  int shared_ffn_size = 0;
  int first_dense_layers = 0;  // so many layers have a dense network, of ModelConfig::ffn_size
  int groups = 1;              // RouterShape's
  int chosen_groups = 1;
  double weight_scale = 1;
  // Factors of what is added to the loss (ops/router.h), and of the step of the router's bias,
  // which only families with such a bias have (Wang et al. 2024, "Auxiliary-loss-free load
  // balancing").
  double balance_loss = 0;
  double z_loss = 0;
  double bias_rate = 0;
  // Room for so many times the tokens of an even load on a rank with others' tokens.
  double memory_factor = 2;

  friend bool operator==(const ExpertConfig&, const ExpertConfig&) = default;
};

// Of a family that has them (Family::has_multipliers); of others as they stand here.
struct Multipliers {
  double embedding = 1;  // of the embedding's output
  double scores = 0;     // AttentionShape::score_scale
  double branches = 1;   // of each part's output, before it is added to the residual stream
  double logits = 1;     // by which logits are divided

  friend bool operator==(const Multipliers&, const Multipliers&) = default;
};

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
  int positions = 0;  // rows of a table of learned positions: the longest sequence
  // AttentionShape::window, of the layers that have one (WindowOf); 0: none has.
  int sliding_window = 0;
  double window_rope_theta = 0;  // of the layers that have a window; 0: rope_theta, and its scaling
  // Scores are scaled by 1 / sqrt of it; 0: head_size (Hugging Face: query_pre_attn_scalar).
  double query_scalar = 0;
  // AttentionShape's, and of logits in the same way; 0: none.
  double score_cap = 0;
  double logit_cap = 0;
  // So many elements of a head have rotary positions: the first ones, of latent attention the last.
  // 0: all.
  int rotary_size = 0;
  // Of latent attention; there head_size is a query's and a key's.
  int query_rank = 0;  // of the queries' latents; 0: queries have none (q_proj)
  int key_rank = 0;    // of the latents of keys and values
  int value_size = 0;  // elements of a value; at most head_size
  Multipliers multipliers;
  ExpertConfig experts;
  AdapterConfig adapter;                  // of a run that tunes; the model itself has none
  const Family* family = &LlamaFamily();  // never null; of families.h

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// The tensors of a block that the backward pass computes again instead of reading them from memory
// (Chen et al. 2016; Korthikanti et al. 2022, section 5). Each part says what it frees, in elements
// a row, and what it costs.
struct Recompute {
  bool norms = false;   // 2 hidden; a pass over each, and where rows are split a gather of each
  bool swiglu = false;  // ffn: SwiGLU's output; a pass
  // (heads + 2 kv_heads + heads) head_size: query, key, value, and attention's output; the product
  // that makes the first three, and attention.
  bool attention = false;
  bool mlp = false;  // 2 ffn: gate and up; the product that makes them. REQUIRES: swiglu.
  // hidden: the residual stream between attention and MLP; the product behind attention, and where
  // tp is several ranks its sum. REQUIRES: all parts above.
  bool middle = false;
  // The first so many blocks of each chunk; the others keep everything (Megatron-LM's
  // --recompute-method block).
  int layers = std::numeric_limits<int>::max();

  static const Recompute kNone;
  static const Recompute kSelective;  // cheap passes over large tensors
  static const Recompute kFull;       // all but the block's input: one more forward pass
  friend bool operator==(const Recompute&, const Recompute&) = default;
};
inline constexpr Recompute Recompute::kNone = {};
inline constexpr Recompute Recompute::kSelective = {.norms = true, .swiglu = true};
inline constexpr Recompute Recompute::kFull = {
    .norms = true, .swiglu = true, .attention = true, .mlp = true, .middle = true};

// The window of a layer; 0: it sees all.
int WindowOf(const ModelConfig& config, int layer);

// Whether the layer turns queries and keys by their positions.
bool HasRope(const ModelConfig& config, int layer);

// Whether the layer's feed-forward network is a mixture of experts.
bool HasExperts(const ModelConfig& config, int layer);

// The named shapes, sorted: gpt2-124m, llama-tiny, llama-3.2-1b, qwen3-8b, ...
std::vector<std::string> ModelNames();

// The family of this name (Family::name); null: there is none.
const Family* FamilyNamed(absl::string_view name);

// NotFound for an unknown name; the text lists the known ones and the closest.
absl::StatusOr<ModelConfig> NamedModel(absl::string_view name);

// Whether the shape makes sense and can be split: positive sizes, heads divisible by kv_heads, of
// latent attention equal to them, an even head_size; heads, ffn and vocabulary divisible by tp;
// kv_heads divisible by tp, or tp by kv_heads, where so many neighbouring ranks hold the same key
// and value head. These ranks' query rows, and their biases where the family has these, must then
// fill whole blocks of kParameterAlignment, since one rank alone owns the key and value rows behind
// them. Learned positions and experts' ffn_size are divisible by tp, experts by ep and by their
// groups. InvalidArgument names the numbers and the legal values near them.
absl::Status ValidateModel(const ModelConfig& config, const Layout& layout);

}  // namespace convene::worker
