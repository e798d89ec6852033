// ResolveModel, as LoadOptions calls it.
#include <string>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/options/load_options.h"

namespace convene::worker {
namespace {

absl::StatusOr<ModelConfig> Resolve(const std::string& name, std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--data", "a.txt", "--model", name});
  CONVENE_ASSIGN_OR_RETURN(const auto options, LoadOptions(flags, [](const std::string&) {
                             return std::optional<std::string>();
                           }));
  return options->model;
}

ModelConfig Model(const std::string& name, const std::vector<std::string>& flags) {
  const auto model = Resolve(name, flags);
  REQUIRE_OK(model);
  return *model;
}

void Refuses(const char* model, const char* flag, const char* value, const char* text) {
  CHECK_STATUS(Resolve(model, {flag, value}), absl::StatusCode::kInvalidArgument, text);
}

TEST_CASE("a key that would change nothing in the model's family is refused") {
  Refuses("gpt2-tiny", "--rope-theta", "5e5",
          "rope_theta changes nothing: the model gpt2-tiny has learned positions");
  Refuses("gpt2-tiny", "--rope-scaling-factor", "8", "rope_scaling_factor changes nothing");
  Refuses("llama-tiny", "--positions", "512",
          "positions changes nothing: the model llama-tiny has rotary positions");
  Refuses("qwen3-tiny", "--sliding-window", "64",
          "sliding_window changes nothing: the model qwen3-tiny has no layers with a window");
  Refuses("gemma3-4b", "--rope-low-frequency-factor", "2",
          "rope_low_frequency_factor changes nothing: the model gemma3-4b divides all");
  Refuses("llama-tiny", "--rope-scaling-type", "yarn",
          "rope_scaling_type changes nothing: the model llama-tiny has no rope_scaling_factor");
  Refuses("llama-tiny", "--rope-scaling-type", "ntk",
          "rope_scaling_type is \"ntk\"; it can be llama3, linear, yarn");
  Refuses("gpt2-tiny", "--rotary-size", "2", "rotary_size changes nothing");
  for (const char* flag : {"--query-rank", "--key-rank", "--value-size"}) {
    Refuses("llama-tiny", flag, "4", "changes nothing: the model llama-tiny has no attention with");
  }
  for (const char* flag : {"--score-cap", "--logit-cap", "--query-scalar", "--window-rope-theta"}) {
    Refuses("mistral-tiny", flag, "4", "changes nothing: the model mistral-tiny");
  }
  Refuses("gemma2-tiny", "--window-rope-theta", "1e4", "has one rope_theta for all its layers");
  for (const char* flag : {"--router-groups", "--router-groups-per-token"}) {
    Refuses("moe-tiny", flag, "1", "the model moe-tiny has no router with groups of experts");
    Refuses("mla-tiny", flag, "1", "the model mla-tiny has no experts");
  }
  Refuses("mla-tiny", "--kv-heads", "4",
          "kv_heads changes nothing: the model mla-tiny makes a key");
  CHECK(Model("gpt2-tiny", {"--positions", "512"}).positions == 512);
  CHECK(
      Model("gemma3-4b", {"--sliding-window", "64", "--rope-scaling-factor", "4"}).sliding_window ==
      64);
}

TEST_CASE("a scaling that no folder of the family can tell is refused before the training") {
  Refuses("phi-4", "--rope-scaling-factor", "4",
          "rope_scaling_factor: files of the family phi3 have no place for it");
  CHECK(Model("phi-4", {"--rope-theta", "1e6"}).rope_theta == 1e6);
}

TEST_CASE("windows keep the theta of all layers where the model has one for both") {
  CHECK(Model("olmo3-tiny", {"--rope-theta", "1e6"}).window_rope_theta == 1e6);
  CHECK(Model("olmo3-tiny", {"--rope-theta", "1e6", "--window-rope-theta", "1e5"})
            .window_rope_theta == 1e5);
  const double gemmas = NamedModel("gemma3-tiny")->window_rope_theta;
  CHECK(Model("gemma3-tiny", {"--rope-theta", "2e6"}).window_rope_theta == gemmas);
}

TEST_CASE("Gemma's caps, scalar and second theta, and DeepSeek's groups, are set and unset") {
  ModelConfig expected = *NamedModel("gemma2-tiny");
  expected.score_cap = 0;
  expected.logit_cap = 12.5;
  expected.query_scalar = 20;
  CHECK(Model("gemma2-tiny", {"--score-cap=0", "--logit-cap=12.5", "--query-scalar=20"}) ==
        expected);
  expected = *NamedModel("gemma3-tiny");
  expected.window_rope_theta = 0;
  CHECK(Model("gemma3-tiny", {"--window-rope-theta=0"}) == expected);
  expected = *NamedModel("deepseek-tiny");
  expected.experts.groups = expected.experts.chosen_groups = 1;
  expected.experts.weight_scale = 16;
  CHECK(Model("deepseek-tiny", {"--router-groups=1", "--router-groups-per-token=1",
                                "--router-weight-scale=16"}) == expected);
}

TEST_CASE("a scaling of rotary positions may be another than the named model's") {
  CHECK(Model("qwen3-8b", {"--rope-scaling-type", "yarn", "--rope-scaling-factor", "4",
                           "--rope-original-positions", "32768"})
            .rope_scaling == RopeScaling{.factor = 4,
                                         .kind = RopeScalingKind::kYarn,
                                         .high_frequency_factor = 32,
                                         .original_positions = 32768});
  CHECK(Model("llama-3.2-1b", {"--rope-scaling-type", "linear"}).rope_scaling ==
        RopeScaling{.factor = 32, .kind = RopeScalingKind::kLinear});
  // The named model's own type keeps all of it.
  CHECK(Model("mla-tiny", {"--rope-scaling-type", "yarn"}).rope_scaling.mscale_all_dim == 1);
}

TEST_CASE("rotary positions are scaled as the model says, or as told") {
  CHECK(Model("llama-3.2-1b", {}).rope_scaling == RopeScaling{.factor = 32});
  CHECK(Model("llama-3-8b",
              {"--rope-scaling-factor", "8", "--rope-low-frequency-factor", "2",
               "--rope-high-frequency-factor", "5", "--rope-original-positions", "4096"})
            .rope_scaling == RopeScaling{.factor = 8,
                                         .low_frequency_factor = 2,
                                         .high_frequency_factor = 5,
                                         .original_positions = 4096});
}

TEST_CASE("latent attention has its own sizes, and as many heads of keys as of queries") {
  const ModelConfig model = Model("mla-tiny", {"--heads", "8", "--query-rank", "0", "--key-rank",
                                               "12", "--rotary-size", "2", "--value-size", "4"});
  CHECK(model.kv_heads == 8);
  CHECK(std::vector{model.query_rank, model.key_rank, model.rotary_size, model.value_size} ==
        std::vector{0, 12, 2, 4});
}

}  // namespace
}  // namespace convene::worker
