// PURE. A family of models as data: the parts of its layers, and the names of its tensors. The
// tables themselves stand in families.cc and expert_families.cc.
#pragma once

#include "worker_runtime/ops/kinds.h"

namespace convene::worker {

// Hugging Face's names, each without its end ".weight" or ".bias". Null: the family has none.
struct TensorNames {
  const char* embedding;
  const char* positions;
  const char* layers;  // a layer's tensors begin with it, a point and the layer's number
  const char* attention_norm;
  const char* query;  // with fused_qkv the name of all three
  const char* key;
  const char* value;
  const char* attention_out;
  const char* sinks;  // whole
  const char* query_norm;
  const char* key_norm;
  // Of latent attention, where `query` stands in place of the first two where there is no query
  // rank, and `key` makes the keys' latents and rotary elements.
  const char* query_down;
  const char* query_up;
  const char* key_value_up;
  const char* attention_post_norm;  // behind the mixer
  const char* mlp_norm;
  const char* mlp_post_norm;  // behind the feed-forward network
  const char* gate;           // with fused_gate_up the name of both
  const char* up;             // without a gate: the first layer of the network
  const char* down;
  const char* router;
  const char* router_bias;  // whole; not the one of Family::other_biases
  const char* experts;      // an expert's tensors begin with it, a point and the expert's number
  const char* expert_gate;
  const char* expert_up;
  const char* expert_down;
  const char* shared_gate;
  const char* shared_up;
  const char* shared_down;
  const char* shared_router;  // one row: how much of the shared experts' output a token gets
  const char* final_norm;
  const char* head;
};

// Hugging Face's config.json of a family: the keys that not all families share
// (weights/hf_config.h has the others). Null: the family has none.
struct ConfigKeys {
  const char* architecture = nullptr;  // null: folders of the family are not read
  // A JSON object: what transformers takes where a key is absent, and Llama's value is another one.
  const char* defaults = "{}";
  const char* layers = "num_hidden_layers";
  const char* hidden_size = "hidden_size";
  const char* ffn_size = "intermediate_size";
  const char* heads = "num_attention_heads";
  const char* kv_heads = "num_key_value_heads";
  const char* head_size = "head_dim";
  const char* positions = "max_position_embeddings";
  const char* norm_epsilon = "rms_norm_eps";
  const char* activation = "hidden_act";
  const char* experts = nullptr;
  const char* expert_ffn_size = nullptr;
  const char* shared_ffn_size = nullptr;  // null: DeepSeek's n_shared_experts says it
  bool scales_rope = true;                // transformers' model of the family takes our scalings
  bool turned_matrices = false;           // the files keep the matrices of layers as [in, out]
  // The files keep a layer's experts in one tensor [expert, in, out], gate and up in turn under
  // this name, their biases with "_bias" behind it.
  const char* gate_up = nullptr;
  // A JSON object: values of keys that change the arithmetic, other ones than Llama's.
  const char* fixed = "{}";
};

struct Family {
  const char* name;  // model_type in config.json
  TensorNames names;
  ConfigKeys keys = {};
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSwiglu;
  bool learned_positions = false;   // a table's; else rotary
  bool has_partial_rotary = false;  // ModelConfig::rotary_size, where attention has no latents
  bool query_key_norms = false;     // of each head, before rotary positions (ops/head_norm.h)
  bool latent_attention = false;    // keys and values from low-rank latents (latent_mixer.h)
  bool whole_norms = false;         // query_key_norms, of all heads of a token together
  bool pre_norms = true;            // before each part
  bool post_norms = false;          // behind each part, before it is added to the residual stream
  bool scales_embedding = false;    // by sqrt(hidden_size), rounded to the activations' type
  bool qkv_biases = false;
  bool other_biases = false;  // of attention's output, and of the feed-forward network, routers too
  bool fused_qkv = false;     // query, key and value rows are one tensor, in this order
  bool fused_gate_up = false;  // the same of gate and up rows of dense layers
  RouterScore router_score = RouterScore::kSoftmax;
  bool normalizes_router = false;  // RouterShape's
  bool router_bias = false;        // for the choice alone, not learned from the loss
  bool router_groups = false;      // of experts, and a scale of their weights (RouterShape)
  bool groups_by_best = false;     // RouterShape::judges_by_best
  bool has_window = false;         // of ModelConfig::sliding_window
  bool has_window_theta = false;   // ModelConfig::window_rope_theta
  bool has_caps = false;           // ModelConfig::score_cap and logit_cap, and its query_scalar
  bool has_multipliers = false;    // ModelConfig::multipliers; not with post_norms
  int full_attention_every = 0;    // every so many layers one has no window; 0: all have it
  int no_rope_every = 0;           // every so many layers one turns nothing; 0: all turn
};

// The family of a model that names none.
const Family& LlamaFamily();

}  // namespace convene::worker
