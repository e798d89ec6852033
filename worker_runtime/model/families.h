// The tables of the families, for named_models.cc.
#pragma once

#include "absl/types/span.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

struct NamedShape {
  const char* name;
  ModelConfig config;  // without its family
};

struct FamilyShapes {
  const Family* family;
  absl::Span<const NamedShape> shapes;
};

// The tables of families.cc, and of expert_families.cc.
absl::Span<const FamilyShapes> DenseFamilies();
absl::Span<const FamilyShapes> ExpertFamilies();

// Names of more than one family.
inline constexpr TensorNames kLlamaNames = {.embedding = "model.embed_tokens",
                                            .layers = "model.layers",
                                            .attention_norm = "input_layernorm",
                                            .query = "self_attn.q_proj",
                                            .key = "self_attn.k_proj",
                                            .value = "self_attn.v_proj",
                                            .attention_out = "self_attn.o_proj",
                                            .mlp_norm = "post_attention_layernorm",
                                            .gate = "mlp.gate_proj",
                                            .up = "mlp.up_proj",
                                            .down = "mlp.down_proj",
                                            .final_norm = "model.norm",
                                            .head = "lm_head"};
inline constexpr TensorNames kQwen3Names = [] {
  TensorNames names = kLlamaNames;
  names.query_norm = "self_attn.q_norm";
  names.key_norm = "self_attn.k_norm";
  return names;
}();

}  // namespace convene::worker
