// The families with experts or latents of keys, as families.cc has the others.
#include "worker_runtime/model/families.h"

namespace convene::worker {
namespace {

// Columns of the tables: those of families.cc. Of a shape's experts: their count, chosen, their
// ffn, shared ffn, dense layers, groups, chosen groups, weight scale, balance loss, z-loss, bias
// rate.
ModelConfig WithExperts(ModelConfig config, const ExpertConfig& experts) {
  config.experts = experts;
  return config;
}
constexpr double kBalance = 0.001;  // Hugging Face's router_aux_loss_coef

// Mixtral (Jiang et al. 2024): Mistral with 8 experts a layer.
constexpr TensorNames kMixtralNames = [] {
  TensorNames names = kLlamaNames;
  names.router = "block_sparse_moe.gate";
  names.experts = "block_sparse_moe.experts";
  names.expert_gate = "w1";
  names.expert_up = "w3";
  names.expert_down = "w2";
  return names;
}();
constexpr Family kMixtral = {
    .name = "mixtral",
    .names = kMixtralNames,
    .keys = {.architecture = "MixtralForCausalLM",
             .defaults = R"({"intermediate_size": 14336, "num_key_value_heads": 8,
                             "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8,
                             "max_position_embeddings": 131072, "num_experts_per_tok": 2,
                             "sliding_window": null})",
             .experts = "num_local_experts",
             .expert_ffn_size = "intermediate_size"},
    .normalizes_router = true,
    .has_window = true};
const NamedShape kMixtrals[] = {
    {"mixtral-8x22b", WithExperts({56, 6144, 16384, 48, 8, 128, 32768, 1e6, 1e-5, false},
                                  {8, 2, 16384, 0, 0, 1, 1, 1, kBalance})},
    // Version 0.1 has no tokens for tools.
    {"mixtral-8x22b-v0.1", WithExperts({56, 6144, 16384, 48, 8, 128, 32000, 1e6, 1e-5, false},
                                       {8, 2, 16384, 0, 0, 1, 1, 1, kBalance})},
    {"mixtral-8x7b", WithExperts({32, 4096, 14336, 32, 8, 128, 32000, 1e6, 1e-5, false},
                                 {8, 2, 14336, 0, 0, 1, 1, 1, kBalance})},
    {"moe-tiny",
     WithExperts({8, 64, 192, 16, 8, 4, 256, 1e6, 1e-5, false}, {8, 2, 96, 0, 0, 1, 1, 1, 0.01})},
};

// Qwen 1.5's and 2's models with experts (Qwen team 2024): biases of query, key and value; each
// token says how much it gets of the shared ones.
constexpr TensorNames kQwen2MoeNames = [] {
  TensorNames names = kLlamaNames;
  names.router = "mlp.gate";
  names.experts = "mlp.experts";
  names.expert_gate = "gate_proj";
  names.expert_up = "up_proj";
  names.expert_down = "down_proj";
  names.shared_gate = "mlp.shared_expert.gate_proj";
  names.shared_up = "mlp.shared_expert.up_proj";
  names.shared_down = "mlp.shared_expert.down_proj";
  names.shared_router = "mlp.shared_expert_gate";
  return names;
}();
constexpr Family kQwen2Moe = {
    .name = "qwen2_moe",
    .names = kQwen2MoeNames,
    .keys = {.architecture = "Qwen2MoeForCausalLM",
             .defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
                             "num_hidden_layers": 24, "num_attention_heads": 16,
                             "num_key_value_heads": 16, "max_position_embeddings": 32768,
                             "num_experts": 60, "num_experts_per_tok": 4,
                             "moe_intermediate_size": 1408,
                             "shared_expert_intermediate_size": 5632})",
             .experts = "num_experts",
             .expert_ffn_size = "moe_intermediate_size",
             .shared_ffn_size = "shared_expert_intermediate_size",
             .fixed = R"({"norm_topk_prob": false, "qkv_bias": true})"},
    .qkv_biases = true};
const NamedShape kQwen2Moes[] = {
    {"qwen1.5-moe-a2.7b", WithExperts({24, 2048, 5632, 16, 16, 128, 151936, 1e6, 1e-6, false},
                                      {60, 4, 1408, 5632, 0, 1, 1, 1, kBalance})},
    {"qwen2-moe-tiny",
     WithExperts({8, 64, 192, 16, 8, 4, 256, 1e6, 1e-6, false}, {8, 2, 48, 96, 0, 1, 1, 1, 0.01})},
};

// Qwen 3's models with experts (Yang et al. 2025).
constexpr TensorNames kQwen3MoeNames = [] {
  TensorNames names = kQwen3Names;
  names.router = "mlp.gate";
  names.experts = "mlp.experts";
  names.expert_gate = "gate_proj";
  names.expert_up = "up_proj";
  names.expert_down = "down_proj";
  return names;
}();
constexpr Family kQwen3Moe = {
    .name = "qwen3_moe",
    .names = kQwen3MoeNames,
    .keys = {.architecture = "Qwen3MoeForCausalLM",
             .defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
                             "num_hidden_layers": 24, "num_key_value_heads": 4,
                             "max_position_embeddings": 32768, "num_experts": 128,
                             "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                             "norm_topk_prob": false})",
             .experts = "num_experts",
             .expert_ffn_size = "moe_intermediate_size",
             .fixed = R"({"qkv_bias": false, "use_qk_norm": true,
                          "shared_expert_intermediate_size": 0})"},
    .query_key_norms = true,
    .normalizes_router = true};
const NamedShape kQwen3Moes[] = {
    {"qwen3-235b-a22b", WithExperts({94, 4096, 12288, 64, 4, 128, 151936, 1e6, 1e-6, false},
                                    {128, 8, 1536, 0, 0, 1, 1, 1, kBalance})},
    {"qwen3-30b-a3b", WithExperts({48, 2048, 6144, 32, 4, 128, 151936, 1e6, 1e-6, false},
                                  {128, 8, 768, 0, 0, 1, 1, 1, kBalance})},
    {"qwen3-moe-tiny",
     WithExperts({4, 64, 192, 16, 8, 4, 256, 1e6, 1e-6, false}, {16, 4, 32, 0, 0, 1, 1, 1, 0.01})},
};

// DeepSeek-V3 (2024): multi-head latent attention; experts that a sigmoid and a bias choose, behind
// the first layers, and shared ones.
constexpr TensorNames kDeepSeekNames = [] {
  TensorNames names = kLlamaNames;
  names.key = "self_attn.kv_a_proj_with_mqa";
  names.value = nullptr;
  names.query_norm = "self_attn.q_a_layernorm";
  names.key_norm = "self_attn.kv_a_layernorm";
  names.query_down = "self_attn.q_a_proj";
  names.query_up = "self_attn.q_b_proj";
  names.key_value_up = "self_attn.kv_b_proj";
  names.router = "mlp.gate";
  names.router_bias = "mlp.gate.e_score_correction_bias";
  names.experts = "mlp.experts";
  names.expert_gate = "gate_proj";
  names.expert_up = "up_proj";
  names.expert_down = "down_proj";
  names.shared_gate = "mlp.shared_experts.gate_proj";
  names.shared_up = "mlp.shared_experts.up_proj";
  names.shared_down = "mlp.shared_experts.down_proj";
  return names;
}();
constexpr Family kDeepSeek = {
    .name = "deepseek_v3",
    .names = kDeepSeekNames,
    .keys = {.architecture = "DeepseekV3ForCausalLM",
             .defaults = R"({"vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
                             "intermediate_size": 18432, "num_attention_heads": 128,
                             "max_position_embeddings": 4096, "n_routed_experts": 256,
                             "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
                             "topk_group": 4, "routed_scaling_factor": 2.5,
                             "norm_topk_prob": true, "first_k_dense_replace": 3,
                             "moe_intermediate_size": 2048, "q_lora_rank": 1536,
                             "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                             "qk_rope_head_dim": 64, "v_head_dim": 128})",
             .head_size = nullptr,
             .experts = "n_routed_experts",
             .expert_ffn_size = "moe_intermediate_size"},
    .latent_attention = true,
    .router_score = RouterScore::kSigmoid,
    .normalizes_router = true,
    .router_bias = true,
    .router_groups = true};
constexpr RopeScaling kDeepSeekScaling = {.factor = 40,
                                          .kind = RopeScalingKind::kYarn,
                                          .high_frequency_factor = 32,
                                          .original_positions = 4096,
                                          .mscale = 1,
                                          .mscale_all_dim = 1};
// Behind the columns above: positions, window, the windows' rope theta, query scalar, caps of
// scores and of logits; rotary size, query rank, key rank, value size.
const NamedShape kDeepSeeks[] = {
    {"deepseek-tiny",
     WithExperts({8, 64, 192, 16, 16, 8, 256, 1e4, 1e-6, false, 0.02, kDeepSeekScaling,
                  0, 0,  0,   0,  0,  0, 4,   24,  16,   6},
                 {8, 2, 48, 64, 1, 4, 2, 2.5, 0.001, 0, 0.001})},
    {"deepseek-v3",
     WithExperts({61, 7168, 18432, 128, 128, 192, 129280, 1e4,  1e-6, false, 0.02, kDeepSeekScaling,
                  0,  0,    0,     0,   0,   0,   64,     1536, 512,  128},
                 {256, 8, 2048, 2048, 3, 8, 4, 2.5, 0.0001, 0, 0.001})},
    {"mla-tiny", {8, 64, 192, 16, 16, 8, 256, 1e4, 1e-6, false, 0.02, kDeepSeekScaling,
                  0, 0,  0,   0,  0,  0, 4,   24,  16,   6}},
};

// DeepSeek-V2 (2024): as V3, but a softmax chooses, without a bias, and weights are not divided by
// their sum. V2-Lite has no latents of queries, and one group.
constexpr TensorNames kDeepSeek2Names = [] {
  TensorNames names = kDeepSeekNames;
  names.router_bias = nullptr;
  return names;
}();
constexpr Family kDeepSeek2 = {
    .name = "deepseek_v2",
    .names = kDeepSeek2Names,
    .keys = {.architecture = "DeepseekV2ForCausalLM",
             .defaults = R"({"vocab_size": 102400, "n_routed_experts": 64, "n_shared_experts": 2,
                             "num_experts_per_tok": null, "n_group": null, "topk_group": null,
                             "topk_method": "greedy", "routed_scaling_factor": 1,
                             "first_k_dense_replace": 0, "moe_intermediate_size": 1407,
                             "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
                             "qk_rope_head_dim": 64, "v_head_dim": 128})",
             .head_size = nullptr,
             .experts = "n_routed_experts",
             .expert_ffn_size = "moe_intermediate_size",
             .fixed = R"({"norm_topk_prob": false, "scoring_func": "softmax"})"},
    .latent_attention = true,
    .router_groups = true,
    .groups_by_best = true};
// YaRN's two scales have not been compared with the published config.json: none was at hand.
constexpr RopeScaling kDeepSeek2Scaling = {.factor = 40,
                                           .kind = RopeScalingKind::kYarn,
                                           .high_frequency_factor = 32,
                                           .original_positions = 4096,
                                           .mscale = 0.707,
                                           .mscale_all_dim = 0.707};
const NamedShape kDeepSeek2s[] = {
    {"deepseek-v2",
     WithExperts(
         {60, 5120, 12288, 128, 128, 192, 102400, 1e4,  1e-6, false, 0.02, kDeepSeek2Scaling,
          0,  0,    0,     0,   0,   0,   64,     1536, 512,  128},
         {160, 6, 1536, 3072, 1, 8, 3, 16, 0.003})},
    {"deepseek-v2-lite",
     WithExperts({27, 2048, 10944, 16, 16, 192, 102400, 1e4, 1e-6, false, 0.02, kDeepSeek2Scaling,
                  0,  0,    0,     0,  0,  0,   64,     0,   512,  128},
                 {64, 6, 1408, 2816, 1, 1, 1, 1, 0.001})},
    {"deepseek-v2-tiny",
     WithExperts({8, 64, 192, 16, 16, 8, 256, 1e4, 1e-6, false, 0.02, kDeepSeek2Scaling,
                  0, 0,  0,   0,  0,  0, 4,   0,   16,   6},
                 {8, 2, 48, 96, 1, 4, 2, 2.5, 0.003})},
};

// GLM 4.5 Air (Zeng et al. 2025): grouped-query attention with biases, of whose heads half turns,
// and DeepSeek-V3's experts. The larger GLM 4.5 norms its heads (use_qk_norm), which is refused.
constexpr TensorNames kGlm4MoeNames = [] {
  TensorNames names = kDeepSeekNames;
  names.query = kLlamaNames.query;
  names.key = kLlamaNames.key;
  names.value = kLlamaNames.value;
  names.query_norm = names.key_norm = nullptr;
  names.query_down = names.query_up = names.key_value_up = nullptr;
  return names;
}();
constexpr Family kGlm4Moe = {
    .name = "glm4_moe",
    .names = kGlm4MoeNames,
    .keys = {.architecture = "Glm4MoeForCausalLM",
             .defaults = R"({"vocab_size": 151552, "intermediate_size": 10944,
                             "num_hidden_layers": 46, "num_attention_heads": 96,
                             "num_key_value_heads": 8, "max_position_embeddings": 131072,
                             "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
                             "attention_bias": false, "n_routed_experts": 128,
                             "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
                             "topk_group": 1, "routed_scaling_factor": 1,
                             "first_k_dense_replace": 1, "moe_intermediate_size": 1408})",
             .experts = "n_routed_experts",
             .expert_ffn_size = "moe_intermediate_size",
             .fixed = R"({"attention_bias": true, "use_qk_norm": false})"},
    .has_partial_rotary = true,
    .qkv_biases = true,
    .router_score = RouterScore::kSigmoid,
    .normalizes_router = true,
    .router_bias = true,
    .router_groups = true};
const NamedShape kGlm4Moes[] = {
    {"glm-4.5-air",
     WithExperts(
         {46, 4096, 10944, 96, 8, 128, 151552, 1e6, 1e-5, false, 0.02, {}, 0, 0, 0, 0, 0, 0, 64},
         {128, 8, 1408, 1408, 1, 1, 1, 1, 0.0001, 0, 0.001})},
    {"glm4-moe-tiny",
     WithExperts({8, 64, 192, 16, 8, 4, 256, 1e6, 1e-5, false, 0.02, {}, 0, 0, 0, 0, 0, 0, 2},
                 {8, 2, 48, 48, 1, 1, 1, 1, 0.001, 0, 0.001})},
};

// gpt-oss (OpenAI 2025): a sink for each head, every second layer without a window, biases of all
// products, clamped gates. Hugging Face keeps the experts of a layer in one tensor, turned round,
// gate and up rows in turn; here each has its own, as the others' experts have.
constexpr TensorNames kGptOssNames = [] {
  TensorNames names = kLlamaNames;
  names.sinks = "self_attn.sinks";
  names.router = "mlp.router";
  names.experts = "mlp.experts";
  names.expert_gate = "gate_proj";
  names.expert_up = "up_proj";
  names.expert_down = "down_proj";
  return names;
}();
constexpr Family kGptOss = {.name = "gpt_oss",
                            .names = kGptOssNames,
                            .keys = {.architecture = "GptOssForCausalLM",
                                     .defaults = R"({"vocab_size": 201088, "hidden_size": 2880,
    "intermediate_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128, "num_experts_per_tok": 4,
    "rope_theta": 150000, "sliding_window": 128, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "yarn", "factor": 32, "beta_fast": 32,
    "beta_slow": 1, "truncate": false, "original_max_position_embeddings": 4096}})",
                                     .experts = "num_local_experts",
                                     .expert_ffn_size = "intermediate_size",
                                     .gate_up = "gate_up_proj",
                                     .fixed = R"({"attention_bias": true, "swiglu_alpha": 1.702,
    "swiglu_limit": 7})"},
                            .activation = Activation::kClampedSwiglu,
                            .qkv_biases = true,
                            .other_biases = true,
                            .normalizes_router = true,
                            .has_window = true,
                            .full_attention_every = 2};
constexpr RopeScaling kGptOssScaling = {.factor = 32,
                                        .kind = RopeScalingKind::kYarn,
                                        .high_frequency_factor = 32,
                                        .original_positions = 4096,
                                        .truncates = false};
// Behind the columns above: positions, window.
const NamedShape kGptOsses[] = {
    {"gpt-oss-120b", WithExperts({36, 2880, 2880, 64, 8, 64, 201088, 150000, 1e-5, false, 0.02,
                                  kGptOssScaling, 0, 128},
                                 {128, 4, 2880, 0, 0, 1, 1, 1, kBalance})},
    {"gpt-oss-20b", WithExperts({24, 2880, 2880, 64, 8, 64, 201088, 150000, 1e-5, false, 0.02,
                                 kGptOssScaling, 0, 128},
                                {32, 4, 2880, 0, 0, 1, 1, 1, kBalance})},
    {"gpt-oss-tiny",
     WithExperts({8, 64, 192, 16, 8, 4, 256, 150000, 1e-5, false, 0.02, kGptOssScaling, 0, 16},
                 {8, 2, 96, 0, 0, 1, 1, 1, 0.01})},
};

const FamilyShapes kFamilies[] = {{&kDeepSeek, kDeepSeeks}, {&kDeepSeek2, kDeepSeek2s},
                                  {&kGlm4Moe, kGlm4Moes},   {&kGptOss, kGptOsses},
                                  {&kMixtral, kMixtrals},   {&kQwen2Moe, kQwen2Moes},
                                  {&kQwen3Moe, kQwen3Moes}};

}  // namespace

absl::Span<const FamilyShapes> ExpertFamilies() { return kFamilies; }

}  // namespace convene::worker
