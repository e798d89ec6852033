#include "worker_runtime/weights/hf_config.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/shape_text.h"

namespace convene::worker {
namespace {

constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ModelConfig Named(const std::string& name) { return NamedModel(name).value(); }

TEST_CASE("every named shape comes back from its config.json") {
  for (const std::string& name : ModelNames()) {
    INFO(name);
    ModelConfig config = Named(name);
    // config.json counts shared experts of the others' size.
    if (name == "deepseek-tiny") config.experts.shared_ffn_size = 96;
    const auto text = WriteHfConfig(config, {});
    REQUIRE_OK(text.status());
    const auto read = ReadHfConfig(*text);
    REQUIRE_OK(read.status());
    if (name == "moe-tiny" || name == "gpt-oss-tiny") config.ffn_size = config.experts.ffn_size;
    CHECK(ShapeText(*read) == ShapeText(config));
    CHECK(read->initializer_range == config.initializer_range);
  }
}

TEST_CASE("a shape that no config.json can say is refused") {
  CHECK_STATUS(WriteHfConfig(Named("deepseek-tiny"), {}), kUnimplemented,
               "no config.json can say this shape: deepseek_v3");
  CHECK_STATUS(WriteHfConfig(Named("deepseek-tiny"), {}), kUnimplemented,
               "shared_ffn_size 64 is no multiple of expert_ffn_size 48");
  ModelConfig config = Named("llama-tiny");
  config.rotary_size = 2;
  CHECK_STATUS(WriteHfConfig(config, {}), kUnimplemented, "no config.json can say");
}

TEST_CASE("Llama 3.2's config.json, as its folder has it") {
  const auto read = ReadHfConfig(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008], "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
    "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0.dev0", "use_cache": true,
    "vocab_size": 128256})");
  REQUIRE_OK(read.status());
  CHECK(*read == Named("llama-3.2-1b"));
}

TEST_CASE("DeepSeek-V2's config.json says how its router chooses") {
  const auto read = [](const std::string& changes) {
    return ReadHfConfig(absl::StrCat(R"({
      "architectures": ["DeepseekV2ForCausalLM"], "aux_loss_alpha": 0.001,
      "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944,
      "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v2",
      "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64,
      "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
      "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
      "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
      "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"},
      "rope_theta": 10000, "seq_aux": true, "v_head_dim": 128, "vocab_size": 102400, )",
                                     changes, "}"));
  };
  const auto lite = read(
      R"("n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
         "norm_topk_prob": false, "routed_scaling_factor": 1.0)");
  REQUIRE_OK(lite.status());
  CHECK(*lite == Named("deepseek-v2-lite"));
  // A greedy router looks at no groups.
  const auto greedy = read(R"("n_group": 8, "topk_group": 3)");
  REQUIRE_OK(greedy.status());
  CHECK(*greedy == Named("deepseek-v2-lite"));
  const auto limited =
      read(R"("n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy")");
  REQUIRE_OK(limited.status());
  CHECK(limited->experts.groups == 8);
  CHECK(limited->experts.chosen_groups == 3);
  CHECK_STATUS(read(R"("topk_method": "noaux_tc")"), kUnimplemented, "\"topk_method\" is no way");
  CHECK_STATUS(read(R"("norm_topk_prob": true)"), kUnimplemented,
               "\"norm_topk_prob\" is true, and the family deepseek_v2 has only false here");
}

TEST_CASE("gpt-oss' config.json, as OpenAI's folder has it") {
  const std::string text = R"({
    "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
    "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
    "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
    "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
    "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert": ["lm_head"],
    "quant_method": "mxfp4"}, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0,
    "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9,
    "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false, "use_cache": true,
    "transformers_version": "4.55.0.dev0", "vocab_size": 201088})";
  const auto read = ReadHfConfig(text);
  REQUIRE_OK(read.status());
  CHECK(ShapeText(*read) == ShapeText(Named("gpt-oss-20b")));
  CHECK(ShapeText(ReadHfConfig(R"({"model_type": "gpt_oss"})").value()) ==
        ShapeText(Named("gpt-oss-120b")));
  for (const auto& [from, to] : {std::pair{"\"swiglu_limit\": 7.0", "\"swiglu_limit\": 6.0"},
                                 {"\"attention_bias\": true", "\"attention_bias\": false"},
                                 {"mxfp4", "bitnet"}}) {
    CHECK_STATUS(ReadHfConfig(absl::StrReplaceAll(text, {{from, to}})), kUnimplemented,
                 "changes the arithmetic");
  }
}

TEST_CASE("experts learn an even load where transformers adds the loss, and as strongly") {
  const auto balance_loss = [](const std::string& keys) {
    const auto read = ReadHfConfig(absl::StrCat("{", keys, "}"));
    REQUIRE_OK(read.status());
    return read->experts.balance_loss;
  };
  const std::string gpt_oss = R"("model_type": "gpt_oss", "num_hidden_layers": 24,
                                 "router_aux_loss_coef": 0.9)";
  CHECK(balance_loss(gpt_oss) == 0);
  CHECK(balance_loss(gpt_oss + R"(, "output_router_logits": false)") == 0);
  const std::string adds = R"(, "output_router_logits": true)";
  CHECK(balance_loss(gpt_oss + adds) == Approx(0.9 * 4 / 24));
  CHECK(balance_loss(R"("model_type": "mixtral", "router_aux_loss_coef": 0.02)" + adds) ==
        Approx(0.02 * 2 / 32));
  CHECK(balance_loss(R"("model_type": "qwen3_moe", "norm_topk_prob": true)" + adds) ==
        Approx(0.001 * 8 / 24));
  CHECK(balance_loss(R"("model_type": "llama")" + adds) == 0);
  // And back.
  ModelConfig config = Named("mixtral-8x7b");
  const auto text = WriteHfConfig(config, {});
  REQUIRE_OK(text.status());
  CHECK(ReadHfConfig(*text)->experts.balance_loss == Approx(config.experts.balance_loss));
  config.experts.balance_loss = 0;
  CHECK_FALSE(absl::StrContains(WriteHfConfig(config, {}).value(), "output_router_logits"));
}

TEST_CASE("DeepSeek's folders may say how strongly experts learn an even load") {
  const auto balance_loss = [](const std::string& keys) {
    const auto read = ReadHfConfig(absl::StrCat("{", keys, "}"));
    REQUIRE_OK(read.status());
    return read->experts.balance_loss;
  };
  const std::string second = R"("model_type": "deepseek_v2")";
  const std::string third = R"("model_type": "deepseek_v3")";
  CHECK(balance_loss(second) == 0.003);
  CHECK(balance_loss(second + R"(, "aux_loss_alpha": 0.001, "seq_aux": true)") == 0.001);
  CHECK(balance_loss(second + R"(, "aux_loss_alpha": 0)") == 0);
  CHECK(balance_loss(third) == 0.0001);
  // Its folders have the key, and its code does not read it.
  CHECK(balance_loss(third + R"(, "aux_loss_alpha": 0.001)") == 0.0001);
  // And back.
  for (const double factor : {0.0, 0.02}) {
    ModelConfig config = Named("deepseek-v2-lite");
    config.experts.balance_loss = factor;
    CHECK(ReadHfConfig(WriteHfConfig(config, {}).value())->experts.balance_loss == factor);
  }
}

TEST_CASE("GLM 4.5 Air's config.json, as its folder has it, says how much of a head turns") {
  const std::string text = R"({
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 10944, "max_position_embeddings": 131072, "model_type": "glm4_moe",
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 96, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1,
    "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 1000000, "routed_scaling_factor": 1.0,
    "tie_word_embeddings": false, "topk_group": 1, "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0", "use_cache": true, "use_qk_norm": false,
    "vocab_size": 151552})";
  const auto read = ReadHfConfig(text);
  REQUIRE_OK(read.status());
  CHECK(*read == Named("glm-4.5-air"));
  const auto with = [&](const char* from, const char* to) {
    return ReadHfConfig(absl::StrReplaceAll(text, {{from, to}}));
  };
  CHECK(with("factor\": 0.5", "factor\": 1")->rotary_size == 0);
  CHECK(with("factor\": 0.5", "factor\": 0.25")->rotary_size == 32);
  CHECK_STATUS(with("factor\": 0.5", "factor\": 1.5"), kInvalid, "is not between 0 and 1");
  CHECK_STATUS(with("use_qk_norm\": false", "use_qk_norm\": true"), kUnimplemented,
               "\"use_qk_norm\" is true, and the family glm4_moe has only false here");
  // In transformers 5 it stands with the other numbers of rotary positions.
  CHECK(with("\"rope_scaling\": null", R"("rope_parameters": {"rope_type": "default",
             "rope_theta": 1000000, "partial_rotary_factor": 0.25})")
            ->rotary_size == 32);
}

TEST_CASE("SmolLM3's config.json, as its folder has it, says which layers turn nothing") {
  const std::string text = R"({
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "max_window_layers": 28,
    "mlp_bias": false, "model_type": "smollm3", "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1,
    1, 0, 1, 1, 1, 0, 1, 1, 1, 0], "num_attention_heads": 16, "num_hidden_layers": 36,
    "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null,
    "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": false,
    "use_sliding_window": false, "vocab_size": 128256})";
  const auto read = ReadHfConfig(text);
  REQUIRE_OK(read.status());
  CHECK(*read == Named("smollm3-3b"));
  CHECK_STATUS(ReadHfConfig(absl::StrReplaceAll(text, {{"[1, 1, 1, 0, 1", "[1, 1, 0, 1, 1"}})),
               kUnimplemented, "\"no_rope_layers\" is not 0 for each 4th layer");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "smollm3", "no_rope_layer_interval": 2})"),
               kUnimplemented,
               "\"no_rope_layer_interval\" is 2, and the family smollm3 has only 4");
  CHECK_OK(ReadHfConfig(R"({"model_type": "smollm3", "no_rope_layer_interval": 4})"));
}

TEST_CASE("Phi-4's config.json, as its folder has it") {
  const std::string text = R"({
    "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "auto_map": {}, "bos_token_id": 100257, "embd_pdrop": 0.0, "eos_token_id": 100265,
    "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "intermediate_size": 17920, "max_position_embeddings": 16384, "model_type": "phi3",
    "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384, "pad_token_id": 100349, "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 250000, "sliding_window": null,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.47.0",
    "use_cache": true, "vocab_size": 100352})";
  const auto read = ReadHfConfig(text);
  REQUIRE_OK(read.status());
  CHECK(*read == Named("phi-4"));
  CHECK_STATUS(ReadHfConfig(absl::StrReplaceAll(text, {{"rope_scaling\": null", R"(rope_scaling":
                   {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]})"}})),
               kUnimplemented,
               "\"rope_type\" is \"longrope\", and the family phi3 has only \"default\" here");
  ModelConfig scaled = Named("phi-4");
  scaled.rope_scaling.factor = 2;
  CHECK_STATUS(WriteHfConfig(scaled, {}), kUnimplemented, "no config.json can say");
}

TEST_CASE("Seed-OSS' config.json, as its folder has it") {
  const std::string text = R"({
    "architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.1,
    "attention_out_bias": false, "bos_token_id": 0, "eos_token_id": 2, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
    "intermediate_size": 27648, "max_position_embeddings": 524288, "mlp_bias": false,
    "model_type": "seed_oss", "num_attention_heads": 80, "num_hidden_layers": 64,
    "num_key_value_heads": 8, "pad_token_id": 1, "residual_dropout": 0.1, "rms_norm_eps": 1e-06,
    "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.55.0",
    "use_cache": true, "vocab_size": 155136})";
  const auto read = ReadHfConfig(text);
  REQUIRE_OK(read.status());
  CHECK(*read == Named("seed-oss-36b"));
  for (const std::string key : {"attention_bias", "attention_out_bias"}) {
    const std::string of_ours =
        absl::StrCat(key, "\": ", key == "attention_bias" ? "true" : "false");
    const std::string other = absl::StrCat(key, "\": ", key == "attention_bias" ? "false" : "true");
    CHECK_STATUS(ReadHfConfig(absl::StrReplaceAll(text, {{of_ours, other}})), kUnimplemented,
                 absl::StrCat("\"", key, "\" is"));
  }
}

TEST_CASE("Granite 3.1's config.json, as its folder has it, says its factors") {
  const std::string text = R"({
    "architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "attention_multiplier": 0.0078125, "bos_token_id": 0, "embedding_multiplier": 12.0,
    "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 12800, "logits_scaling": 16.0, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "granite", "num_attention_heads": 32,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.47.0", "use_cache": true, "vocab_size": 49152})";
  const auto read = ReadHfConfig(text);
  REQUIRE_OK(read.status());
  CHECK(*read == Named("granite-3.1-8b"));
  CHECK(ReadHfConfig(R"({"model_type": "granite"})")->multipliers == Multipliers{1, 1, 1, 1});
}

TEST_CASE("OLMo's config.json, as its folders have it") {
  const auto two = ReadHfConfig(R"({
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "olmo2",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
    "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.47.0",
    "use_cache": true, "vocab_size": 100352})");
  REQUIRE_OK(two.status());
  CHECK(*two == Named("olmo2-7b"));
  const std::string text = R"({
    "architectures": ["Olmo3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 65536, "model_type": "olmo3",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": {
    "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1, "factor": 8.0,
    "original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000,
    "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0", "use_cache": true, "vocab_size": 100278})";
  const auto three = ReadHfConfig(text);
  REQUIRE_OK(three.status());
  CHECK(*three == Named("olmo3-7b"));
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "olmo3", "num_hidden_layers": 1,
                                "layer_types": ["full_attention"]})"),
               kUnimplemented, "\"layer_types\"");
}

TEST_CASE("what a config.json leaves out is transformers' default") {
  const ModelConfig mixtral = ReadHfConfig(R"({"model_type": "mixtral"})").value();
  CHECK(mixtral.norm_epsilon == 1e-5);
  CHECK(mixtral.rope_theta == 1e6);
  CHECK(mixtral.experts.count == 8);
  CHECK(mixtral.experts.ffn_size == 14336);
  CHECK(mixtral.sliding_window == 0);
  CHECK(ReadHfConfig(R"({"model_type": "mistral"})")->sliding_window == 4096);
  CHECK(ReadHfConfig(R"({"model_type": "mistral", "sliding_window": null})")->sliding_window == 0);
  CHECK(ReadHfConfig(R"({"model_type": "qwen3"})")->head_size == 128);
  const ModelConfig gpt2 = ReadHfConfig(R"({"model_type": "gpt2"})").value();
  CHECK(gpt2 == Named("gpt2-124m"));
  const ModelConfig llama = ReadHfConfig(R"({"model_type": "llama"})").value();
  CHECK(llama.kv_heads == 32);
  CHECK(llama.head_size == 128);
  CHECK(llama.norm_epsilon == 1e-6);
  CHECK_FALSE(llama.tied_embeddings);
}

TEST_CASE("rotary positions in both spellings") {
  const auto theta = [](const std::string& keys) {
    return ReadHfConfig(absl::StrCat(R"({"model_type": "llama", )", keys, "}")).value();
  };
  CHECK(theta(R"("rope_theta": 3e5)").rope_theta == 3e5);
  CHECK(theta(R"("rope_parameters": {"rope_type": "default", "rope_theta": 4e5})").rope_theta ==
        4e5);
  // The numbers within win, and rope_scaling over rope_parameters.
  const ModelConfig both = theta(R"("rope_theta": 3e5,
      "rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 5e5},
      "rope_parameters": {"rope_type": "linear", "factor": 8, "rope_theta": 6e5})");
  CHECK(both.rope_theta == 5e5);
  CHECK(both.rope_scaling.factor == 2);
  CHECK(both.rope_scaling.kind == RopeScalingKind::kLinear);
  const ModelConfig yarn = theta(R"("max_position_embeddings": 640,
      "rope_scaling": {"type": "yarn", "factor": 4})");
  CHECK(yarn.rope_scaling.original_positions == 640);
  CHECK(yarn.rope_scaling.high_frequency_factor == 32);
}

TEST_CASE("a config.json tells the longest text that the model was made for") {
  CHECK(ReadLongestText("{}").value() == 0);
  CHECK(ReadLongestText(R"({"max_position_embeddings": null})").value() == 0);
  CHECK(ReadLongestText(R"({"max_position_embeddings": -1})").value() == 0);
  CHECK(ReadLongestText(R"({"max_position_embeddings": 64})").value() == 64);
  CHECK_STATUS(ReadLongestText("{"), kInvalid, "");
  ModelConfig config = NamedModel("llama-tiny").value();
  const auto written = [&](int positions) {
    return ReadLongestText(WriteHfConfig(config, {.positions = positions}).value()).value();
  };
  CHECK(written(2048) == 2048);
  CHECK(written(0) == 4096);
  config.rope_scaling = {.factor = 8, .kind = RopeScalingKind::kLlama3, .original_positions = 8192};
  CHECK(written(0) == 65536);
  CHECK(written(131072) == 131072);
}

TEST_CASE("transformers 5 writes Qwen's experts under another name") {
  CHECK(ReadHfConfig(R"({"model_type": "qwen3_moe", "norm_topk_prob": true,
                         "num_local_experts": 16})")
            ->experts.count == 16);
}

TEST_CASE("keys that change the arithmetic are refused by name") {
  const auto refused = [](const std::string& family, const std::string& key,
                          const std::string& value) {
    INFO(key << " " << value);
    CHECK_STATUS(ReadHfConfig(absl::StrCat(R"({"model_type": ")", family, R"(", ")", key, R"(": )",
                                           value, "}")),
                 kUnimplemented, absl::StrCat("\"", key, "\""));
  };
  refused("llama", "attention_bias", "true");
  refused("llama", "mlp_bias", "true");
  refused("llama", "hidden_act", "\"gelu\"");
  refused("llama", "residual_multiplier", "0.22");
  refused("llama", "partial_rotary_factor", "0.5");
  refused("llama", "quantization_config", R"({"quant_method": "fp8"})");
  refused("llama", "architectures", R"(["LlamaForSequenceClassification"])");
  refused("gpt2", "scale_attn_by_inverse_layer_idx", "true");
  refused("qwen2", "use_sliding_window", "true");
  refused("qwen2", "use_mrope", "true");
  refused("gemma2", "sliding_window_size", "2048");
  refused("llama", "sliding_window_size", "2048");
  refused("qwen3_moe", "norm_topk_prob", "false");
  refused("gemma3_text", "sliding_window_pattern", "4");
  refused("gemma2", "layer_types", R"(["full_attention"])");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "llama",
                                "rope_scaling": {"rope_type": "longrope", "factor": 2}})"),
               kUnimplemented,
               "\"rope_type\" is \"longrope\", and rotary positions here are llama3, linear, yarn "
               "or default");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "llama", "hidden_act": "gelu"})"), kUnimplemented,
               "\"hidden_act\" is \"gelu\", and the family llama has only \"silu\" here: the value "
               "changes the arithmetic");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "qwen3_moe"})"), kUnimplemented, "norm_topk_prob");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "llama", "architectures": ["LlamaModel"]})"),
               kUnimplemented,
               R"(is ["LlamaModel"], and the family llama has only ["LlamaForCausalLM"] here)");
}

TEST_CASE("the refusal of an unknown key or family names the nearest known one") {
  const auto refused = [](const std::string& rest, const std::string& why) {
    CHECK_STATUS(ReadHfConfig(absl::StrCat("{\"model_type\": \"", rest, "}")), kUnimplemented, why);
  };
  const std::string nearest = "; the nearest known one is ";
  refused(
      R"(llama", "num_hiden_layers": 2)",
      absl::StrCat("arithmetic", nearest, "\"num_hidden_layers\". Where the key does not, take"));
  refused(R"(llama", "attention_droput": 0)", absl::StrCat(nearest, "\"attention_dropout\""));
  refused(R"(llama", "frobnication": 0)", "arithmetic. Where the key does not, take it out");
  refused(
      R"(llama", "rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fst": 1})",
      absl::StrCat("\"beta_fst\" of the rotary positions is not known", nearest, "\"beta_fast\""));
  refused("lama\"", absl::StrCat("is \"lama\", and no family of models has this name", nearest,
                                 "\"llama\". The families are "));
  refused("rwkv_world\"", "has this name. The families are ");
  // Characters that steer a terminal are not shown: ESC, and CSI in one character.
  refused(R"(llama", "\u001b[2J": 1)", "\"?[2J\" is not known");
  refused(R"(a\u001b]0;b")", "is \"a?]0;b\", and no family");
  refused(R"(llama", "architectures": ["\u009b2J"])", "is [\"?2J\"], and the family llama");
}

TEST_CASE("harmless keys are passed over") {
  REQUIRE_OK(ReadHfConfig(R"({"model_type": "llama", "use_cache": false, "_name_or_path": "x",
                              "attention_dropout": 0.5, "layer_types": null})")
                 .status());
}

TEST_CASE("keys of published folders that change nothing are passed over") {
  for (const auto& [family, keys] :
       {std::pair{"qwen2", R"("use_mrope": false)"},                       // Qwen2.5
        {"llama", R"("transformers.js_config": {"kv_cache_dtype": {}})"},  // SmolLM2-Instruct
        {"llama", R"("unsloth_fixed": true)"},
        {"deepseek_v2", R"("auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"})"},
        {"gemma2", R"("sliding_window": 4096, "sliding_window_size": 4096)"},  // 9B
        {"gpt2", R"("gradient_checkpointing": false, "n_special": 0, "output_past": true,
                    "predict_special_tokens": true, "torchscript": false, "use_bfloat16": false)"},
        // Qwen3-Coder-30B-A3B
        {"qwen3_moe", R"("norm_topk_prob": true, "qkv_bias": false, "use_qk_norm": true,
                         "shared_expert_intermediate_size": 0)"}}) {
    INFO(keys);
    CHECK_OK(ReadHfConfig(absl::StrCat(R"({"model_type": ")", family, "\", ", keys, "}")));
  }
}

TEST_CASE("a config.json that is none") {
  CHECK_STATUS(ReadHfConfig("[]"), kInvalid, "holds no JSON object");
  CHECK_STATUS(ReadHfConfig("{"), kInvalid, "");
  CHECK_STATUS(ReadHfConfig("{}"), kInvalid, "model_type");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "llama", "hidden_size": "x"})"), kInvalid,
               "\"hidden_size\"");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "llama", "hidden_size": -1})"), kInvalid,
               "\"hidden_size\"");
  CHECK_STATUS(ReadHfConfig(R"({"model_type": "llama", "rope_scaling": {"type": "linear"}})"),
               kInvalid, "have no factor");
}

}  // namespace
}  // namespace convene::worker
