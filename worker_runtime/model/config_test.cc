#include "worker_runtime/model/config.h"

#include <algorithm>
#include <cmath>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/parameters.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ModelConfig Shape(const std::string& name) {
  const auto config = NamedModel(name);
  REQUIRE_OK(config);
  return *config;
}

TEST_CASE("tied embeddings are counted once") {
  ModelConfig config = Shape("llama-tiny");
  const int64_t untied = ParameterCount(config);
  config.tied_embeddings = true;
  CHECK(untied - ParameterCount(config) == 256 * 64);
}

TEST_CASE("an unknown name is answered with the closest and the known ones") {
  CHECK_STATUS(NamedModel("llama-3-8"), absl::StatusCode::kNotFound,
               "unknown model \"llama-3-8\"; did you mean \"llama-3-8b\"? Known: deepseek-tiny, ");
  CHECK_STATUS(NamedModel("mixture-of-everything"), absl::StatusCode::kNotFound,
               "unknown model \"mixture-of-everything\"; known: deepseek-tiny, ");
}

TEST_CASE(
    "Llama 3.1 to 3.3, Gemma 3, DeepSeek, gpt-oss and OLMo 3 stretch rotary positions, the others "
    "do "
    "not") {
  for (const std::string& name : ModelNames()) {
    INFO(name);
    RopeScaling expected;
    if (name.starts_with("llama-3.1-") || name == "llama-3.3-70b") expected.factor = 8;
    if (name == "llama-3.2-1b" || name == "llama-3.2-3b") expected.factor = 32;
    if (name == "gemma3-4b" || name == "gemma3-12b" || name == "gemma3-27b") {
      expected = {.factor = 8, .kind = RopeScalingKind::kLinear};
    }
    if (name == "mla-tiny" || name == "deepseek-tiny" || name == "deepseek-v3") {
      expected = {.factor = 40,
                  .kind = RopeScalingKind::kYarn,
                  .high_frequency_factor = 32,
                  .original_positions = 4096,
                  .mscale = 1,
                  .mscale_all_dim = 1};
    }
    if (name.starts_with("deepseek-v2")) {
      expected = {.factor = 40,
                  .kind = RopeScalingKind::kYarn,
                  .high_frequency_factor = 32,
                  .original_positions = 4096,
                  .mscale = 0.707,
                  .mscale_all_dim = 0.707};
    }
    if (name.starts_with("gpt-oss")) {
      expected = {.factor = 32,
                  .kind = RopeScalingKind::kYarn,
                  .high_frequency_factor = 32,
                  .original_positions = 4096,
                  .truncates = false};
    }
    if (name == "olmo3-7b" || name == "olmo3-32b") {
      expected = {.factor = 8,
                  .kind = RopeScalingKind::kYarn,
                  .high_frequency_factor = 32,
                  .original_positions = 8192,
                  .amplitude = 1.2079441541679836};
    }
    CHECK(Shape(name).rope_scaling == expected);
  }
}

TEST_CASE("a scaling that makes no sense names the number") {
  const auto scaled = [](const RopeScaling& scaling) {
    ModelConfig config = Shape("llama-tiny");
    config.rope_scaling = scaling;
    return ValidateModel(config, Layout{});
  };
  CHECK_OK(scaled({.factor = 8}));
  CHECK_STATUS(scaled({.factor = 0.5}), kInvalid, "rope_scaling_factor 0.5 must be at least 1");
  CHECK_STATUS(scaled({.factor = NAN}), kInvalid, "rope_scaling_factor nan");
  CHECK_STATUS(scaled({.low_frequency_factor = 0}), kInvalid, "rope_low_frequency_factor 0");
  CHECK_STATUS(scaled({.low_frequency_factor = 4}), kInvalid,
               "rope_high_frequency_factor 4 must be greater than rope_low_frequency_factor");
  CHECK_STATUS(scaled({.original_positions = 0}), kInvalid, "rope_original_positions 0");
}

TEST_CASE("a split that does not come out even names the legal ones") {
  ModelConfig config = Shape("llama-tiny");
  config.heads = 6;
  config.kv_heads = 6;
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 4}), kInvalid,
               "heads 6 cannot be split over tp_size 4; tp_size can be 1 or 2");
  config.vocabulary_size = 240;
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 4}), kInvalid,
               "heads 6 cannot be split over tp_size 4; tp_size can be 1, 2, 3 or 6");
}

TEST_CASE("sizes of latent attention that make no sense name the number") {
  const auto changed = [](int ModelConfig::*size, int value, int tp = 1) {
    ModelConfig config = Shape("mla-tiny");
    config.*size = value;
    return ValidateModel(config, Layout{.tp = tp});
  };
  CHECK_OK(changed(&ModelConfig::query_rank, 0));
  CHECK_STATUS(changed(&ModelConfig::rotary_size, 3), kInvalid, "rotary_size 3 must be an even");
  CHECK_STATUS(changed(&ModelConfig::rotary_size, 10), kInvalid, "rotary_size 10 must be an even");
  CHECK_STATUS(changed(&ModelConfig::rotary_size, 0), kInvalid, "rotary_size 0 must be a number");
  CHECK_STATUS(changed(&ModelConfig::query_rank, -1), kInvalid, "query_rank -1");
  CHECK_STATUS(changed(&ModelConfig::key_rank, 0), kInvalid, "key_rank 0");
  CHECK_STATUS(changed(&ModelConfig::value_size, 9), kInvalid, "value_size 9 must be a number");
  CHECK_STATUS(changed(&ModelConfig::kv_heads, 8), kInvalid, "kv_heads 8 must be heads 16");
  ModelConfig config = Shape("mla-tiny");
  config.query_rank = 0;
  config.heads = config.kv_heads = 6;
  config.hidden_size = 63;
  CHECK_OK(ValidateModel(config, Layout{}));
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 2}), kInvalid,
               "latents of keys cannot be copied behind heads / tp_size x head_size x hidden_size "
               "= 1512 values, which is no multiple of 64, over tp_size 2");
}

TEST_CASE("each of the sizes split over tp is checked") {
  ModelConfig config = Shape("llama-tiny");
  config.ffn_size = 190;
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 4}), kInvalid, "ffn_size 190 cannot be split");
  config = Shape("llama-tiny");
  config.vocabulary_size = 50257;
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 2}), kInvalid,
               "vocabulary_size 50257 cannot be split over tp_size 2; tp_size can be 1");
}

TEST_CASE("key and value heads are split, or copied where there are fewer than ranks") {
  ModelConfig config = Shape("llama-tiny");
  for (const int kv_heads : {1, 2, 4, 16}) {
    config.kv_heads = kv_heads;
    for (const int tp : {1, 2, 4, 8, 16}) {
      INFO(kv_heads << " over " << tp);
      CHECK_OK(ValidateModel(config, Layout{.tp = tp}));
    }
  }
  config.heads = 12;
  config.kv_heads = 6;
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 4}), kInvalid,
               "kv_heads 6 can neither be split nor copied over tp_size 4; tp_size can be 1 or 2");
  config.vocabulary_size = 240;
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 4}), kInvalid,
               "over tp_size 4; tp_size can be 1, 2, 3, 6 or 12");
}

TEST_CASE("copied heads begin where one flag can tell them from the query's") {
  ModelConfig config = Shape("llama-tiny");
  config.kv_heads = 2;
  config.hidden_size = 10;
  CHECK_OK(ValidateModel(config, Layout{.tp = 2}));
  CHECK_STATUS(ValidateModel(config, Layout{.tp = 4}), kInvalid,
               "kv_heads 2 cannot be copied behind heads / tp_size x head_size x hidden_size = "
               "160 values, which is no multiple of 64, over tp_size 4; tp_size can be 1 or 2");
}

TEST_CASE("a shape that makes no sense names the number") {
  const auto broken = [](auto change) {
    ModelConfig config = Shape("llama-tiny");
    change(config);
    return ValidateModel(config, Layout{});
  };
  CHECK_STATUS(broken([](ModelConfig& c) { c.layers = 0; }), kInvalid,
               "layers 0 must be a number from 1 to 4096");
  CHECK_STATUS(broken([](ModelConfig& c) { c.hidden_size = -64; }), kInvalid, "hidden_size -64");
  CHECK_STATUS(broken([](ModelConfig& c) { c.head_size = 1 << 20; }), kInvalid,
               "head_size 1048576 must be a number from 1 to 65536");
  CHECK_STATUS(broken([](ModelConfig& c) { c.kv_heads = 5; }), kInvalid,
               "heads 16 cannot share kv_heads 5 evenly; kv_heads can be 1, 2, 4, 8 or 16");
  CHECK_STATUS(broken([](ModelConfig& c) { c.head_size = 5; }), kInvalid,
               "head_size can be 4 or 6");
  CHECK_STATUS(broken([](ModelConfig& c) { c.head_size = 1; }), kInvalid, "head_size can be 2");
  CHECK_STATUS(broken([](ModelConfig& c) { c.rope_theta = 0; }), kInvalid, "rope_theta 0");
  CHECK_STATUS(broken([](ModelConfig& c) { c.norm_epsilon = -1; }), kInvalid, "norm_epsilon -1");
  CHECK_STATUS(broken([](ModelConfig& c) { c.initializer_range = NAN; }), kInvalid,
               "initializer_range nan");
}

TEST_CASE("a router that makes no sense names the number") {
  const auto broken = [](auto change) {
    ModelConfig config = Shape("deepseek-tiny");
    change(config.experts);
    return ValidateModel(config, Layout{});
  };
  CHECK_OK(broken([](ExpertConfig&) {}));
  CHECK_STATUS(broken([](ExpertConfig& e) { e.groups = 0; }), kInvalid, "router_groups 0");
  CHECK_STATUS(broken([](ExpertConfig& e) { e.chosen_groups = e.groups + 1; }), kInvalid,
               "router_groups_per_token");
  CHECK_STATUS(broken([](ExpertConfig& e) { e.weight_scale = NAN; }), kInvalid,
               "router_weight_scale nan");
  CHECK_STATUS(broken([](ExpertConfig& e) { e.shared_ffn_size = -1; }), kInvalid,
               "shared_ffn_size -1");
}

}  // namespace
}  // namespace convene::worker
