// PURE. The parameters that a rank holds, unit by unit: their global names and boxes. Where they
// lie in memory is the unit store's affair (shard/).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// kUniform: between -standard_deviation x sqrt(3) and that.
enum class Initializer { kOnes, kZeros, kNormal, kUniform };

// One rank's slice of one named tensor. Names are those of the family's table; matrices are
// [out, in].
struct ParameterSlice {
  std::string name;                     // "model.layers.3.self_attn.q_proj.weight"
  std::array<int64_t, 2> global_shape;  // (rows, columns); a vector is (1, columns)
  std::array<int64_t, 2> offset;        // of the slice in the global tensor
  std::array<int64_t, 2> extent;        // of the slice
  // The rows of the tensor that are one matrix of a block, from the first one on (a fused tensor
  // has several). None: it is no matrix of a block.
  int64_t matrix_begin = 0;
  int64_t matrix_rows = 0;
  bool decayed = true;  // weight decay applies (matrices)
  // Counted in the global gradient norm and written to checkpoints by this rank: false for all but
  // one of the ranks that hold the same slice because of tensor parallelism (norms, copied heads)
  // or tied embeddings (the last stage's copy).
  bool owned = true;
  // So many neighbouring tensor-parallel ranks hold this slice, and each makes a part of its
  // gradient: the sum over them is the gradient (key and value heads, where tp is larger).
  int tp_copies = 1;
  // The router's bias: its gradient says by how much more tokens than the mean chose an expert, and
  // counts in no norm (BalanceStep).
  bool balances = false;
  Initializer initializer = Initializer::kNormal;
  double standard_deviation = 0;

  int64_t count() const { return extent[0] * extent[1]; }
  bool is_matrix() const { return matrix_rows > 0; }
};

// One tensor as a unit's arithmetic sees it: slices side by side, fused where the forward pass
// multiplies once. Two units of a rank whose tensors have the same name share one tensor.
struct UnitTensor {
  std::vector<ParameterSlice> slices;
  int role = 0;  // an EmbeddingTensor, BlockTensor or HeadTensor
  // Every tensor-parallel rank holds it whole, and makes the same gradient for it.
  bool same_on_tp = false;
  // Like those it lies beside the norms, small as it is: the input half of a backward pass makes
  // its gradient, and a unit's own bucket is reduced when the weight half has made all of it; or it
  // stands beside a tied table, which has to have a bucket of its own.
  bool in_first_bucket = false;
  bool of_experts = false;  // an expert-parallel rank holds those of its experts alone
  bool is_frozen = false;   // it never changes, and no pass makes a gradient for it
  // The ranks of the first and of the last chunk both hold it, and are two: its gradient is the sum
  // of both ranks' gradients.
  bool on_both_ends = false;

  const std::string& name() const { return slices.front().name; }
  int64_t count() const;
};

enum class UnitKind { kEmbedding, kBlock, kHead };

// The roles of a unit's tensors, of which a family has some. Their order is that of
// UnitSpec::tensors.
enum EmbeddingTensor {
  kEmbeddingTable,  // (vocabulary / tp, hidden)
  kPositionTable,   // (positions / tp, hidden)
};
enum BlockTensor {
  kAttentionNorm,  // (hidden)
  // ((heads / tp + 2 max(1, kv_heads / tp)) * head_size, hidden): query, key, value rows. Of latent
  // attention (query_rank + key_rank + rotary_size, hidden), the same on each rank: the latents'
  // rows and those of the keys' rotary elements; without a query rank the rank's query rows.
  kQkv,
  kAttentionOut,  // (hidden, heads / tp * head_size), of latent attention value_size
  kMlpNorm,       // (hidden)
  kGateUp,        // (2 ffn / tp, hidden): gate rows, up rows
  kDown,          // (hidden, ffn / tp)
  // Biases: of a norm (hidden), of a product as many as its rows. Without a gate kGateUp and its
  // bias have up rows alone.
  kAttentionNormBias,
  kQkvBias,
  kAttentionOutBias,
  kMlpNormBias,
  kGateUpBias,
  kDownBias,
  kQueryNorm,  // (head_size), of whole_norms heads of them, of latent attention (query_rank)
  kKeyNorm,    // the same of kv_heads, and of key_rank
  kAttentionPostNorm,  // (hidden)
  kMlpPostNorm,        // (hidden)
  // Of latent attention: (heads / tp * head_size, query_rank), and (heads / tp * (head_size -
  // rotary_size + value_size), key_rank): for each head key rows, value rows.
  kQueryUp,
  kKeyValueUp,
  kRouter,      // (experts, hidden)
  kRouterBias,  // (experts)
  // With experts kGateUp and kDown are the shared experts'.
  kExpertGateUp,      // (experts / ep, 2 ffn / tp, hidden): each expert's gate rows, up rows
  kExpertDown,        // (experts / ep, hidden, ffn / tp)
  kSinks,             // (heads / tp)
  kRouterLogitBias,   // (experts): learned from the loss, which kRouterBias is not
  kExpertGateUpBias,  // (experts / ep, 2 ffn / tp)
  kExpertDownBias,    // (experts / ep, hidden)
  kSharedGate,        // (1, hidden): a logit for each row of what shared experts make
  // The adapters of some of these tensors (kAdapted): all A of a tensor, (ranks, inputs), and all
  // B, (outputs, rank), in the order of the tensor's slices.
  kQkvA,
  kQkvB,
  kAttentionOutA,
  kAttentionOutB,
  kGateUpA,
  kGateUpB,
  kDownA,
  kDownB,
  kQueryUpA,
  kQueryUpB,
  kKeyValueUpA,
  kKeyValueUpB,
};
// A tensor that may have adapters, and their roles.
struct AdaptedTensor {
  BlockTensor tensor;
  BlockTensor a;
  BlockTensor b;
};
inline constexpr AdaptedTensor kAdapted[] = {{kQkv, kQkvA, kQkvB},
                                             {kAttentionOut, kAttentionOutA, kAttentionOutB},
                                             {kGateUp, kGateUpA, kGateUpB},
                                             {kDown, kDownA, kDownB},
                                             {kQueryUp, kQueryUpA, kQueryUpB},
                                             {kKeyValueUp, kKeyValueUpA, kKeyValueUpB}};
enum HeadTensor {
  kFinalNorm,      // (hidden)
  kHead,           // (vocabulary / tp, hidden)
  kFinalNormBias,  // (hidden)
};

// One link of the model's chain, and what this rank holds of its parameters.
struct UnitSpec {
  UnitKind kind;
  std::vector<UnitTensor> tensors;
  int layer = 0;  // of a block, in the model
};

// By role, the places in UnitSpec::tensors; -1: the unit has no such tensor.
std::vector<int> PlacesOf(const UnitSpec& unit);

// A run of the model's layers. The first chunk has the embedding too, the last one the head.
struct ModelChunk {
  int first_layer = 0;
  int layers = 0;
  bool has_embedding = false;
  bool has_head = false;
  bool ends_apart = false;  // the first and the last chunk lie on two ranks
};

// The chunks of the model, from the embedding to the head. `layers`: of each; `placement`: their
// pipeline ranks (schedule/plan.h). REQUIRES: as many of each, and the layers add up to the
// model's.
std::vector<ModelChunk> ChunksOf(const std::vector<int>& layers, const std::vector<int>& placement);

// The units of one chunk on one of `tp_size` tensor-parallel and `ep_size` expert-parallel ranks,
// in the order of the forward pass. REQUIRES: ValidateModel is OK.
std::vector<UnitSpec> UnitsOf(const ModelConfig& config, const ModelChunk& chunk, int tp_size,
                              int tp_rank, int ep_size = 1, int ep_rank = 0);

// Of the whole model, its adapters among them; and those that learn: all, or the adapters'.
int64_t ParameterCount(const ModelConfig& config);
int64_t TrainedCount(const ModelConfig& config);

// Whether config.adapter makes sense for the model, and so many tensor-parallel ranks can share it
// out. InvalidArgument names the number, or a target that is no matrix which may have an adapter,
// and the legal ones. OK where there are no adapters. REQUIRES: ValidateModel is OK.
absl::Status ValidateAdapters(const ModelConfig& config, int tp_size);

// The head's work beside its layers, in layers (CutLayers): products of the head and of a layer's
// matrices, without attention's scores.
double HeadCost(const ModelConfig& config);

}  // namespace convene::worker
