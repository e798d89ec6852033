// The dense families, and the named shapes of each. A family of known parts is one more table here.
#include "worker_runtime/model/families.h"

namespace convene::worker {
namespace {

// Llama 1 to 3 (Touvron et al. 2023; Llama 3 herd 2024).
constexpr Family kLlama = {
    .name = "llama", .names = kLlamaNames, .keys = {.architecture = "LlamaForCausalLM"}};

// Columns of the tables below: layers, hidden, ffn, heads, kv heads, head size, vocabulary, rope
// theta, norm epsilon, tied embeddings; initializer range, rope scaling. Sources: Touvron et al.
// 2023 (Llama 2), Llama 3 herd 2024, and the model cards of Llama 3.1 to 3.3.
constexpr RopeScaling kLlama31Scaling = {.factor = 8};
constexpr RopeScaling kLlama32Scaling = {.factor = 32};
const NamedShape kLlamas[] = {
    // The sizes of GPT-2 small and medium (padded vocabulary), as a Llama.
    {"llama-125m", {12, 768, 2048, 12, 12, 64, 50304, 10000.0, 1e-5, true}},
    {"llama-15m", {8, 384, 1024, 8, 8, 48, 256, 10000.0, 1e-5, false}},
    {"llama-2-13b", {40, 5120, 13824, 40, 40, 128, 32000, 10000.0, 1e-5, false}},
    {"llama-2-70b", {80, 8192, 28672, 64, 8, 128, 32000, 10000.0, 1e-5, false}},
    {"llama-2-7b", {32, 4096, 11008, 32, 32, 128, 32000, 10000.0, 1e-5, false}},
    {"llama-3-405b", {126, 16384, 53248, 128, 8, 128, 128256, 500000.0, 1e-5, false}},
    {"llama-3-70b", {80, 8192, 28672, 64, 8, 128, 128256, 500000.0, 1e-5, false}},
    {"llama-3-8b", {32, 4096, 14336, 32, 8, 128, 128256, 500000.0, 1e-5, false}},
    {"llama-3.1-405b",
     {126, 16384, 53248, 128, 8, 128, 128256, 5e5, 1e-5, false, 0.02, kLlama31Scaling}},
    {"llama-3.1-70b",
     {80, 8192, 28672, 64, 8, 128, 128256, 5e5, 1e-5, false, 0.02, kLlama31Scaling}},
    {"llama-3.1-8b",
     {32, 4096, 14336, 32, 8, 128, 128256, 5e5, 1e-5, false, 0.02, kLlama31Scaling}},
    {"llama-3.2-1b", {16, 2048, 8192, 32, 8, 64, 128256, 5e5, 1e-5, true, 0.02, kLlama32Scaling}},
    {"llama-3.2-3b", {28, 3072, 8192, 24, 8, 128, 128256, 5e5, 1e-5, true, 0.02, kLlama32Scaling}},
    {"llama-3.3-70b",
     {80, 8192, 28672, 64, 8, 128, 128256, 5e5, 1e-5, false, 0.02, kLlama31Scaling}},
    {"llama-350m", {24, 1024, 2816, 16, 16, 64, 50304, 10000.0, 1e-5, true}},
    // The short name that job files use for llama-3-70b.
    {"llama-70b", {80, 8192, 28672, 64, 8, 128, 128256, 500000.0, 1e-5, false}},
    // Byte vocabulary and heads of 4, so that every layout up to tp 8 x pp 8 is legal in a test.
    {"llama-tiny", {8, 64, 192, 16, 8, 4, 256, 10000.0, 1e-5, false}},
};

// Mistral (Jiang et al. 2023): v0.1 has a window, later versions have none. Behind the columns
// above: positions, window.
constexpr Family kMistral = {
    .name = "mistral",
    .names = kLlamaNames,
    .keys = {.architecture = "MistralForCausalLM",
             .defaults = R"({"intermediate_size": 14336, "num_key_value_heads": 8,
                             "max_position_embeddings": 131072, "sliding_window": 4096})"},
    .has_window = true};
const NamedShape kMistrals[] = {
    {"mistral-7b-v0.1", {32, 4096, 14336, 32, 8, 128, 32000, 1e4, 1e-5, false, 0.02, {}, 0, 4096}},
    {"mistral-7b-v0.3", {32, 4096, 14336, 32, 8, 128, 32768, 1e6, 1e-5, false}},
    {"mistral-tiny", {8, 64, 192, 16, 8, 4, 256, 1e4, 1e-5, false, 0.02, {}, 0, 16}},
};

// Qwen 2 and 2.5 (Yang et al. 2024): biases of query, key and value.
constexpr Family kQwen2 = {
    .name = "qwen2",
    .names = kLlamaNames,
    .keys = {.architecture = "Qwen2ForCausalLM",
             .defaults = R"({"vocab_size": 151936, "intermediate_size": 22016,
                             "num_key_value_heads": 32, "max_position_embeddings": 32768})"},
    .qkv_biases = true};
const NamedShape kQwen2s[] = {
    {"qwen2-tiny", {8, 64, 192, 16, 8, 4, 256, 1e6, 1e-6, true}},
    {"qwen2.5-0.5b", {24, 896, 4864, 14, 2, 64, 151936, 1e6, 1e-6, true}},
    {"qwen2.5-1.5b", {28, 1536, 8960, 12, 2, 128, 151936, 1e6, 1e-6, true}},
    {"qwen2.5-14b", {48, 5120, 13824, 40, 8, 128, 152064, 1e6, 1e-5, false}},
    {"qwen2.5-32b", {64, 5120, 27648, 40, 8, 128, 152064, 1e6, 1e-5, false}},
    {"qwen2.5-3b", {36, 2048, 11008, 16, 2, 128, 151936, 1e6, 1e-6, true}},
    {"qwen2.5-72b", {80, 8192, 29568, 64, 8, 128, 152064, 1e6, 1e-5, false}},
    {"qwen2.5-7b", {28, 3584, 18944, 28, 4, 128, 152064, 1e6, 1e-6, false}},
};

// Qwen 3 (Yang et al. 2025): norms of each query and key head, no biases.
constexpr Family kQwen3 = {
    .name = "qwen3",
    .names = kQwen3Names,
    .keys = {.architecture = "Qwen3ForCausalLM",
             .defaults = R"({"vocab_size": 151936, "intermediate_size": 22016, "head_dim": 128,
                             "num_key_value_heads": 32, "max_position_embeddings": 32768})"},
    .query_key_norms = true};
const NamedShape kQwen3s[] = {
    {"qwen3-0.6b", {28, 1024, 3072, 16, 8, 128, 151936, 1e6, 1e-6, true}},
    {"qwen3-1.7b", {28, 2048, 6144, 16, 8, 128, 151936, 1e6, 1e-6, true}},
    {"qwen3-14b", {40, 5120, 17408, 40, 8, 128, 151936, 1e6, 1e-6, false}},
    {"qwen3-32b", {64, 5120, 25600, 64, 8, 128, 151936, 1e6, 1e-6, false}},
    {"qwen3-4b", {36, 2560, 9728, 32, 8, 128, 151936, 1e6, 1e-6, true}},
    {"qwen3-8b", {36, 4096, 12288, 32, 8, 128, 151936, 1e6, 1e-6, false}},
    {"qwen3-tiny", {8, 64, 192, 16, 8, 4, 256, 1e6, 1e-6, true}},
};

// Gemma 3, the text models (Kamath et al. 2025): norms before and behind each part, weights of
// norms that count from 1, and five layers with a window to one without.
constexpr TensorNames kGemma3Names = [] {
  TensorNames names = kQwen3Names;
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}();
constexpr Family kGemma3 = {
    .name = "gemma3_text",
    .names = kGemma3Names,
    .keys = {.architecture = "Gemma3ForCausalLM",
             .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
                             "num_hidden_layers": 26, "num_attention_heads": 8, "head_dim": 256,
                             "num_key_value_heads": 4, "max_position_embeddings": 131072,
                             "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                             "sliding_window": 4096, "query_pre_attn_scalar": 256,
                             "tie_word_embeddings": true,
                             "hidden_activation": "gelu_pytorch_tanh"})",
             .activation = "hidden_activation"},
    .norm = NormKind::kRmsPlusOne,
    .activation = Activation::kGeglu,
    .query_key_norms = true,
    .post_norms = true,
    .scales_embedding = true,
    .has_window = true,
    .has_window_theta = true,
    .has_caps = true,
    .full_attention_every = 6};
// Behind the columns above: positions, window, the windows' rope theta, query scalar. The sizes
// from 4b on are the language models of larger ones, whose numbers of parameters they add up to
// (families_test.cc).
constexpr RopeScaling kGemma3Scaling = {.factor = 8, .kind = RopeScalingKind::kLinear};
const NamedShape kGemma3s[] = {
    {"gemma3-12b",
     {48, 3840, 15360, 16, 8, 256, 262208, 1e6, 1e-6, true, 0.02, kGemma3Scaling, 0, 1024, 1e4}},
    {"gemma3-1b", {26, 1152, 6912, 4, 1, 256, 262144, 1e6, 1e-6, true, 0.02, {}, 0, 512, 1e4}},
    {"gemma3-27b",
     {62, 5376, 21504, 32, 16, 128, 262208, 1e6, 1e-6, true, 0.02, kGemma3Scaling, 0, 1024, 1e4,
      168}},
    {"gemma3-4b",
     {34, 2560, 10240, 8, 4, 256, 262208, 1e6, 1e-6, true, 0.02, kGemma3Scaling, 0, 1024, 1e4}},
    {"gemma3-tiny", {12, 64, 192, 16, 8, 4, 256, 1e6, 1e-6, true, 0.02, {}, 0, 16, 1e4}},
};

// Gemma 2 (2024): as Gemma 3, but without norms of heads, every second layer without a window, and
// with caps. Behind the columns above: positions, window, the windows' rope theta, query scalar,
// caps of scores and of logits. Sizes: Google's gemma_pytorch (gemma/config.py); of 9b
// transformers' conversion script has the query scalar 224 instead of its head size.
constexpr TensorNames kGemma2Names = [] {
  TensorNames names = kGemma3Names;
  names.query_norm = names.key_norm = nullptr;
  return names;
}();
constexpr Family kGemma2 = {
    .name = "gemma2",
    .names = kGemma2Names,
    .keys = {.architecture = "Gemma2ForCausalLM",
             .defaults = R"({"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
                             "num_hidden_layers": 26, "num_attention_heads": 8, "head_dim": 256,
                             "num_key_value_heads": 4, "max_position_embeddings": 8192,
                             "sliding_window": 4096, "query_pre_attn_scalar": 256,
                             "attn_logit_softcapping": 50, "final_logit_softcapping": 30,
                             "tie_word_embeddings": true,
                             "hidden_activation": "gelu_pytorch_tanh"})",
             .activation = "hidden_activation"},
    .norm = NormKind::kRmsPlusOne,
    .activation = Activation::kGeglu,
    .post_norms = true,
    .scales_embedding = true,
    .has_window = true,
    .has_caps = true,
    .full_attention_every = 2};
const NamedShape kGemma2s[] = {
    {"gemma2-27b",
     {46, 4608, 36864, 32, 16, 128, 256000, 1e4, 1e-6, true, 0.02, {}, 0, 4096, 0, 144, 50, 30}},
    {"gemma2-2b",
     {26, 2304, 9216, 8, 4, 256, 256000, 1e4, 1e-6, true, 0.02, {}, 0, 4096, 0, 0, 50, 30}},
    {"gemma2-9b",
     {42, 3584, 14336, 16, 8, 256, 256000, 1e4, 1e-6, true, 0.02, {}, 0, 4096, 0, 0, 50, 30}},
    {"gemma2-tiny", {8, 64, 192, 16, 8, 4, 256, 1e4, 1e-6, true, 0.02, {}, 0, 16, 0, 0, 50, 30}},
};

// SmolLM3 (Bakouch et al. 2025): Llama, of whose layers each fourth turns nothing.
constexpr Family kSmolLm3 = {
    .name = "smollm3",
    .names = kLlamaNames,
    .keys = {.architecture = "SmolLM3ForCausalLM",
             .defaults = R"({"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
                             "num_attention_heads": 16, "num_key_value_heads": 4,
                             "max_position_embeddings": 32768, "rope_theta": 2e6,
                             "tie_word_embeddings": true})"},
    .no_rope_every = 4};
const NamedShape kSmolLm3s[] = {
    {"smollm3-3b", {36, 2048, 11008, 16, 4, 128, 128256, 5e6, 1e-6, true}},
    {"smollm3-tiny", {8, 64, 192, 16, 8, 4, 256, 2e6, 1e-6, true}},
};

// Seed-OSS (ByteDance 2025): Llama with biases of query, key and value.
constexpr Family kSeedOss = {
    .name = "seed_oss",
    .names = kLlamaNames,
    .keys = {.architecture = "SeedOssForCausalLM",
             .defaults = R"({"vocab_size": 155136, "intermediate_size": 27648, "head_dim": 128,
                             "num_hidden_layers": 64, "num_attention_heads": 80,
                             "num_key_value_heads": 8, "max_position_embeddings": 524288})",
             .fixed = R"({"attention_bias": true, "attention_out_bias": false})"},
    .qkv_biases = true};
const NamedShape kSeedOsses[] = {
    {"seed-oss-36b", {64, 5120, 27648, 80, 8, 128, 155136, 1e7, 1e-6, false}},
    {"seed-oss-tiny", {8, 64, 192, 16, 8, 4, 256, 1e7, 1e-6, false}},
};

// Granite 3 (IBM 2024), the dense models: Llama with factors. Sizes and factors: the base models of
// version 3.1, whose vocabulary has no tokens for tools.
constexpr Family kGranite = {
    .name = "granite",
    .names = kLlamaNames,
    .keys = {.architecture = "GraniteForCausalLM",
             .defaults = R"({"embedding_multiplier": 1, "attention_multiplier": 1,
                             "residual_multiplier": 1, "logits_scaling": 1})"},
    .has_multipliers = true};
ModelConfig WithMultipliers(ModelConfig config, const Multipliers& multipliers) {
  config.multipliers = multipliers;
  return config;
}
const NamedShape kGranites[] = {
    {"granite-3.1-2b",
     WithMultipliers({40, 2048, 8192, 32, 8, 64, 49152, 5e6, 1e-5, true}, {12, 0.015625, 0.22, 8})},
    {"granite-3.1-8b", WithMultipliers({40, 4096, 12800, 32, 8, 128, 49152, 1e7, 1e-5, true},
                                       {12, 0.0078125, 0.22, 16})},
    {"granite-tiny",
     WithMultipliers({8, 64, 192, 16, 8, 4, 256, 1e4, 1e-5, true}, {12, 0.25, 0.22, 8})},
};

// Phi-3 and Phi-4 (Abdin et al. 2024): query, key and value are one product of the files, gate and
// up another. Behind the columns above: positions, window.
constexpr TensorNames kPhi3Names = [] {
  TensorNames names = kLlamaNames;
  names.query = names.key = names.value = "self_attn.qkv_proj";
  names.gate = names.up = "mlp.gate_up_proj";
  return names;
}();
constexpr Family kPhi3 = {
    .name = "phi3",
    .names = kPhi3Names,
    .keys = {.architecture = "Phi3ForCausalLM",
             .defaults = R"({"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
                             "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})",
             .scales_rope = false},
    .has_partial_rotary = true,
    .fused_qkv = true,
    .fused_gate_up = true,
    .has_window = true};
const NamedShape kPhi3s[] = {
    {"phi-3-medium-4k", {40, 5120, 17920, 40, 10, 128, 32064, 1e4, 1e-5, false, 0.02, {}, 0, 2047}},
    {"phi-3-mini-4k", {32, 3072, 8192, 32, 32, 96, 32064, 1e4, 1e-5, false, 0.02, {}, 0, 2047}},
    {"phi-4", {40, 5120, 17920, 40, 10, 128, 100352, 250000, 1e-5, false}},
    {"phi3-tiny", {8, 64, 192, 16, 8, 4, 256, 1e4, 1e-5, false, 0.02, {}, 0, 16}},
};

// OLMo 2 (OLMo et al. 2024): norms of all query and of all key heads of a token, and norms behind
// the parts alone.
constexpr TensorNames kOlmo2Names = [] {
  TensorNames names = kQwen3Names;
  names.attention_norm = names.mlp_norm = nullptr;
  names.attention_post_norm = "post_attention_layernorm";
  names.mlp_post_norm = "post_feedforward_layernorm";
  return names;
}();
constexpr Family kOlmo2 = {.name = "olmo2",
                           .names = kOlmo2Names,
                           .keys = {.architecture = "Olmo2ForCausalLM",
                                    .defaults = R"({"vocab_size": 50304, "rms_norm_eps": 1e-5})"},
                           .query_key_norms = true,
                           .whole_norms = true,
                           .pre_norms = false,
                           .post_norms = true};
const NamedShape kOlmo2s[] = {
    {"olmo2-13b", {40, 5120, 13824, 40, 40, 128, 100352, 5e5, 1e-6, false}},
    {"olmo2-1b", {16, 2048, 8192, 16, 16, 128, 100352, 5e5, 1e-6, false}},
    {"olmo2-32b", {64, 5120, 27648, 40, 8, 128, 100352, 5e5, 1e-6, false}},
    {"olmo2-7b", {32, 4096, 11008, 32, 32, 128, 100352, 5e5, 1e-6, false}},
    {"olmo2-tiny", {8, 64, 192, 16, 8, 4, 256, 5e5, 1e-6, false}},
};

// OLMo 3 (Team Olmo 2025): as OLMo 2, but three layers with a window to one without, whose rotary
// positions alone are scaled. Behind the columns above: positions, window, the windows' rope theta.
constexpr Family kOlmo3 = [] {
  Family family = kOlmo2;
  family.name = "olmo3";
  family.keys.architecture = "Olmo3ForCausalLM";
  family.keys.defaults = R"({"vocab_size": 50304, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
                             "sliding_window": 4096})";
  family.has_window = true;
  family.has_window_theta = true;
  family.full_attention_every = 4;
  return family;
}();
constexpr RopeScaling kOlmo3Scaling = {.factor = 8,
                                       .kind = RopeScalingKind::kYarn,
                                       .high_frequency_factor = 32,
                                       .original_positions = 8192,
                                       .amplitude = 1.2079441541679836};
const NamedShape kOlmo3s[] = {
    {"olmo3-32b",
     {64, 5120, 27648, 40, 8, 128, 100278, 5e5, 1e-6, false, 0.02, kOlmo3Scaling, 0, 4096, 5e5}},
    {"olmo3-7b",
     {32, 4096, 11008, 32, 32, 128, 100278, 5e5, 1e-6, false, 0.02, kOlmo3Scaling, 0, 4096, 5e5}},
    {"olmo3-tiny", {8, 64, 192, 16, 8, 4, 256, 5e5, 1e-6, false, 0.02, {}, 0, 16, 5e5}},
};

// GPT-2 (Radford et al. 2019). Hugging Face keeps its matrices turned round; here they are
// [out, in] as all others.
constexpr Family kGpt2 = {.name = "gpt2",
                          .names = {.embedding = "transformer.wte",
                                    .positions = "transformer.wpe",
                                    .layers = "transformer.h",
                                    .attention_norm = "ln_1",
                                    .query = "attn.c_attn",
                                    .key = "attn.c_attn",
                                    .value = "attn.c_attn",
                                    .attention_out = "attn.c_proj",
                                    .mlp_norm = "ln_2",
                                    .up = "mlp.c_fc",
                                    .down = "mlp.c_proj",
                                    .final_norm = "transformer.ln_f",
                                    .head = "lm_head"},
                          .keys = {.architecture = "GPT2LMHeadModel",
                                   .defaults = R"({"vocab_size": 50257, "n_positions": 1024,
                                                   "n_embd": 768, "n_layer": 12, "n_head": 12,
                                                   "n_inner": null, "layer_norm_epsilon": 1e-5,
                                                   "tie_word_embeddings": true,
                                                   "activation_function": "gelu_new"})",
                                   .layers = "n_layer",
                                   .hidden_size = "n_embd",
                                   .ffn_size = "n_inner",
                                   .heads = "n_head",
                                   .kv_heads = nullptr,
                                   .head_size = nullptr,
                                   .positions = "n_positions",
                                   .norm_epsilon = "layer_norm_epsilon",
                                   .activation = "activation_function",
                                   .turned_matrices = true},
                          .norm = NormKind::kLayer,
                          .activation = Activation::kGelu,
                          .learned_positions = true,
                          .qkv_biases = true,
                          .other_biases = true,
                          .fused_qkv = true};
// Behind the columns above: positions.
const NamedShape kGpt2s[] = {
    {"gpt2-124m", {12, 768, 3072, 12, 12, 64, 50257, 1e4, 1e-5, true, 0.02, {}, 1024}},
    {"gpt2-1558m", {48, 1600, 6400, 25, 25, 64, 50257, 1e4, 1e-5, true, 0.02, {}, 1024}},
    {"gpt2-355m", {24, 1024, 4096, 16, 16, 64, 50257, 1e4, 1e-5, true, 0.02, {}, 1024}},
    {"gpt2-774m", {36, 1280, 5120, 20, 20, 64, 50257, 1e4, 1e-5, true, 0.02, {}, 1024}},
    {"gpt2-tiny", {8, 64, 256, 16, 16, 4, 256, 1e4, 1e-5, true, 0.02, {}, 1024}},
};

const FamilyShapes kFamilies[] = {
    {&kGemma2, kGemma2s},  {&kGemma3, kGemma3s},   {&kGpt2, kGpt2s},   {&kGranite, kGranites},
    {&kLlama, kLlamas},    {&kMistral, kMistrals}, {&kOlmo2, kOlmo2s}, {&kOlmo3, kOlmo3s},
    {&kPhi3, kPhi3s},      {&kQwen2, kQwen2s},     {&kQwen3, kQwen3s}, {&kSeedOss, kSeedOsses},
    {&kSmolLm3, kSmolLm3s}};

}  // namespace

const Family& LlamaFamily() { return kLlama; }

absl::Span<const FamilyShapes> DenseFamilies() { return kFamilies; }

}  // namespace convene::worker
