#include "worker_runtime/weights/hf_config_keys.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {

const rapidjson::Value* MemberOf(const rapidjson::Value& object, absl::string_view key) {
  for (const auto& member : object.GetObject()) {
    if (TextOf(member.name) == key) return &member.value;
  }
  return nullptr;
}

std::vector<Field> FieldsOf(bool has_experts, ModelConfig* config) {
  const Family& family = *config->family;
  const ConfigKeys& keys = family.keys;
  ModelConfig& c = *config;
  std::vector<Field> fields = {
      {"vocab_size", &c.vocabulary_size},         {keys.layers, &c.layers},
      {keys.hidden_size, &c.hidden_size},         {keys.heads, &c.heads},
      {keys.norm_epsilon, &c.norm_epsilon},       {"initializer_range", &c.initializer_range},
      {"tie_word_embeddings", &c.tied_embeddings}};
  const auto add = [&](std::initializer_list<Field> more) {
    fields.insert(fields.end(), more.begin(), more.end());
  };
  // Mixtral's key is that of its experts.
  const bool is_of_experts =
      keys.expert_ffn_size != nullptr && absl::string_view(keys.ffn_size) == keys.expert_ffn_size;
  if (!has_experts || !is_of_experts) add({{keys.ffn_size, &c.ffn_size}});
  if (keys.kv_heads != nullptr) add({{keys.kv_heads, &c.kv_heads}});
  if (keys.head_size != nullptr) add({{keys.head_size, &c.head_size}});
  if (family.learned_positions) add({{keys.positions, &c.positions}});
  if (family.has_window) add({{"sliding_window", &c.sliding_window}});
  if (family.has_caps) {
    add({{kQueryScalar, &c.query_scalar},
         {"attn_logit_softcapping", &c.score_cap},
         {"final_logit_softcapping", &c.logit_cap}});
  }
  if (family.has_multipliers) {
    add({{"embedding_multiplier", &c.multipliers.embedding},
         {"attention_multiplier", &c.multipliers.scores},
         {"residual_multiplier", &c.multipliers.branches},
         {"logits_scaling", &c.multipliers.logits}});
  }
  if (family.latent_attention) {
    add({{"q_lora_rank", &c.query_rank},
         {"kv_lora_rank", &c.key_rank},
         {"v_head_dim", &c.value_size},
         {"qk_rope_head_dim", &c.rotary_size}});
  }
  if (keys.experts == nullptr) return fields;
  ExpertConfig& experts = c.experts;
  if (family.router_groups) add({{"first_k_dense_replace", &experts.first_dense_layers, false}});
  if (!has_experts) return fields;
  add({{keys.experts, &experts.count},
       {"num_experts_per_tok", &experts.chosen},
       {keys.expert_ffn_size, &experts.ffn_size}});
  if (keys.shared_ffn_size != nullptr) add({{keys.shared_ffn_size, &experts.shared_ffn_size}});
  if (!family.router_groups) {
    add({{"router_aux_loss_coef", &experts.balance_loss, false}});
    return fields;
  }
  add({{"n_group", &experts.groups},
       {"topk_group", &experts.chosen_groups},
       {"routed_scaling_factor", &experts.weight_scale}});
  return fields;
}

std::vector<Field> FieldsOf(RopeScaling* scaling) {
  switch (scaling->kind) {
    case RopeScalingKind::kLinear:
      return {};
    case RopeScalingKind::kLlama3:
      return {{"low_freq_factor", &scaling->low_frequency_factor},
              {"high_freq_factor", &scaling->high_frequency_factor},
              {"original_max_position_embeddings", &scaling->original_positions}};
    case RopeScalingKind::kYarn:
      return {{"beta_slow", &scaling->low_frequency_factor},
              {"beta_fast", &scaling->high_frequency_factor},
              {"original_max_position_embeddings", &scaling->original_positions},
              {"attention_factor", &scaling->amplitude},
              {"mscale", &scaling->mscale},
              {"mscale_all_dim", &scaling->mscale_all_dim},
              {"truncate", &scaling->truncates}};
  }
  return {};
}

const char* ActivationName(const Family& family) {
  if (family.learned_positions) return "gelu_new";
  return family.activation == Activation::kGeglu ? "gelu_pytorch_tanh" : "silu";
}

const char* RouterMethod(const ModelConfig& config) {
  if (!config.family->groups_by_best) return "noaux_tc";
  return config.experts.groups > 1 ? "group_limited_greedy" : "greedy";
}

double BalanceLossUnit(const ModelConfig& config) {
  return static_cast<double>(config.experts.chosen) / std::max(config.layers, 1);
}

const char* LayerType(const ModelConfig& config, int layer) {
  return WindowOf(config, layer) > 0 ? "sliding_attention" : "full_attention";
}

}  // namespace convene::worker
