// The tables of families.cc and expert_families.cc.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/model/testing/tiny_models.h"

namespace convene::worker {
namespace {

ModelConfig Shape(const std::string& name) {
  const auto config = NamedModel(name);
  REQUIRE_OK(config);
  return *config;
}

// Of the model cards.
TEST_CASE("parameter counts are the published ones") {
  const std::pair<const char*, int64_t> published[] = {{"gemma2-27b", 27'227'128'320},
                                                       {"gemma2-2b", 2'614'341'888},
                                                       {"gemma2-9b", 9'241'705'984},
                                                       {"gemma3-1b", 999'885'952},
                                                       {"gpt2-124m", 124'439'808},
                                                       {"gpt2-1558m", 1'557'611'200},
                                                       {"gpt2-355m", 354'823'168},
                                                       {"gpt2-774m", 774'030'080},
                                                       {"llama-2-13b", 13'015'864'320},
                                                       {"llama-2-70b", 68'976'648'192},
                                                       {"llama-2-7b", 6'738'415'616},
                                                       {"llama-3-405b", 405'853'388'800},
                                                       {"llama-3-70b", 70'553'706'496},
                                                       {"llama-3-8b", 8'030'261'248},
                                                       {"llama-3.1-405b", 405'853'388'800},
                                                       {"llama-3.1-70b", 70'553'706'496},
                                                       {"llama-3.1-8b", 8'030'261'248},
                                                       {"llama-3.3-70b", 70'553'706'496},
                                                       {"mixtral-8x22b-v0.1", 140'620'634'112},
                                                       {"llama-3.2-1b", 1'235'814'400},
                                                       {"llama-3.2-3b", 3'212'749'824},
                                                       {"mistral-7b-v0.1", 7'241'732'096},
                                                       {"mistral-7b-v0.3", 7'248'023'552},
                                                       {"qwen2.5-0.5b", 494'032'768},
                                                       {"qwen2.5-1.5b", 1'543'714'304},
                                                       {"qwen2.5-14b", 14'770'033'664},
                                                       {"qwen2.5-32b", 32'763'876'352},
                                                       {"qwen2.5-3b", 3'085'938'688},
                                                       {"qwen2.5-72b", 72'706'203'648},
                                                       {"qwen2.5-7b", 7'615'616'512},
                                                       {"mixtral-8x22b", 140'630'071'296},
                                                       {"gpt-oss-120b", 116'829'156'672},
                                                       {"gpt-oss-20b", 20'914'757'184},
                                                       {"qwen1.5-moe-a2.7b", 14'315'784'192},
                                                       {"mixtral-8x7b", 46'702'792'704},
                                                       {"deepseek-v3", 671'026'419'200},
                                                       {"deepseek-v2", 235'741'434'880},
                                                       {"deepseek-v2-lite", 15'706'484'224},
                                                       {"qwen3-235b-a22b", 235'093'634'560},
                                                       {"qwen3-30b-a3b", 30'532'122'624},
                                                       {"qwen3-0.6b", 596'049'920},
                                                       {"qwen3-1.7b", 1'720'574'976},
                                                       {"qwen3-14b", 14'768'307'200},
                                                       {"qwen3-32b", 32'762'123'264},
                                                       {"qwen3-4b", 4'022'468'096},
                                                       {"qwen3-8b", 8'190'735'360},
                                                       {"olmo2-13b", 13'716'198'400},
                                                       {"olmo2-1b", 1'484'916'736},
                                                       {"olmo2-32b", 32'234'279'936},
                                                       {"olmo2-7b", 7'298'617'344},
                                                       {"olmo3-32b", 32'233'522'176},
                                                       {"olmo3-7b", 7'298'011'136},
                                                       {"phi-3-medium-4k", 13'960'238'080},
                                                       {"phi-3-mini-4k", 3'821'079'552},
                                                       {"phi-4", 14'659'507'200},
                                                       {"seed-oss-36b", 36'151'104'512},
                                                       {"smollm3-3b", 3'075'098'624}};
  for (const auto& [name, count] : published) {
    INFO(name);
    CHECK(ParameterCount(Shape(name)) == count);
  }
}

TEST_CASE("every family has a tiny shape, by which tests go through all families") {
  CHECK(testing::FamiliesOf(testing::TinyModels()) == testing::FamiliesOf(ModelNames()));
}

// GLM 4.5 Air is published as 106 billion, without the layer that guesses a token further on.
TEST_CASE("GLM 4.5 Air has its number of parameters") {
  CHECK(ParameterCount(Shape("glm-4.5-air")) == 106'852'251'264);
}

// The published counts have what sees pictures in them: SigLIP-So400m for 896 x 896, and the norm
// and the matrix that bring its output into the language model.
TEST_CASE("parameter counts of Gemma 3 are the published ones without what sees pictures") {
  constexpr int64_t kWidth = 1152, kFfn = 4304, kPatch = 3 * 14 * 14, kPatches = 64 * 64;
  constexpr int64_t kLayer = 4 * (kWidth + 1) * kWidth + 2 * kWidth * kFfn + kFfn + kWidth +
                             4 * kWidth;  // attention, feed-forward network with biases, norms
  constexpr int64_t kTower = 27 * kLayer + (kPatch + 1 + kPatches + 2) * kWidth;
  const std::pair<const char*, int64_t> published[] = {
      {"gemma3-4b", 4'300'079'472}, {"gemma3-12b", 12'187'325'040}, {"gemma3-27b", 27'432'406'640}};
  for (const auto& [name, count] : published) {
    INFO(name);
    const int64_t projector = kWidth * (Shape(name).hidden_size + 1);
    CHECK(ParameterCount(Shape(name)) + kTower + projector == count);
  }
}

// The published counts are those of the models that follow instructions.
TEST_CASE("parameter counts of Granite 3 are the published ones with three tokens more") {
  for (const auto& [name, count] :
       {std::pair("granite-3.1-2b", 2'533'531'648), {"granite-3.1-8b", 8'170'848'256}}) {
    INFO(name);
    ModelConfig config = Shape(name);
    config.vocabulary_size += 3;
    CHECK(ParameterCount(config) == count);
  }
}

TEST_CASE("Llama 3.1 and 3.3 reach further than Llama 3 by scaled positions alone") {
  for (const auto& [name, base] :
       {std::pair("llama-3.1-8b", "llama-3-8b"), std::pair("llama-3.1-405b", "llama-3-405b"),
        std::pair("llama-3.3-70b", "llama-3-70b")}) {
    INFO(name);
    ModelConfig config = Shape(name);
    CHECK(config.rope_scaling == RopeScaling{.factor = 8});
    config.rope_scaling = Shape(base).rope_scaling;
    CHECK(config == Shape(base));
  }
  CHECK(Shape("llama-3.1-70b") == Shape("llama-3.3-70b"));
}

// DeepSeek-V3's matrices, added up by hand from their shapes; all else is small here.
TEST_CASE("latent attention of DeepSeek-V3's sizes has its number of parameters") {
  ModelConfig config = Shape("mla-tiny");
  config.layers = 1;
  config.hidden_size = 7168;
  config.ffn_size = 1;
  config.heads = config.kv_heads = 128;
  config.head_size = 192;
  config.rotary_size = 64;
  config.query_rank = 1536;
  config.key_rank = 512;
  config.value_size = 128;
  config.vocabulary_size = 1;
  constexpr int64_t kBeside = (3 + 2 + 3) * 7168;  // norms, table and head, feed-forward network
  CHECK(ParameterCount(config) - kBeside == 187'107'328);
}

TEST_CASE("the small shapes have the size their names promise") {
  CHECK(ParameterCount(Shape("llama-tiny")) == 427'072);
  CHECK(ParameterCount(Shape("llama-15m")) == 14'358'912);
}

TEST_CASE("each family has its own tensors, under Hugging Face's names") {
  const auto tensors = [](const std::string& name) {
    std::set<std::string> names;
    const ModelConfig config = Shape(name);
    for (const UnitSpec& unit : UnitsOf(config, testing::WholeModel(config), 1, 0)) {
      for (const UnitTensor& tensor : unit.tensors) {
        for (const ParameterSlice& slice : tensor.slices) names.insert(slice.name);
      }
    }
    return names;
  };
  const std::set<std::string> llama = tensors("llama-tiny");
  CHECK(llama.size() == 3 + 8 * 9);
  // The tensors of layer 0 that Llama has not.
  const auto more = [&](const std::string& name) {
    std::vector<std::string> names;
    for (const std::string& tensor : tensors(name)) {
      if (llama.count(tensor) == 0 && tensor.find(".0.") != std::string::npos) {
        names.push_back(tensor.substr(tensor.find(".0.") + 3));
      }
    }
    return names;
  };
  CHECK(more("qwen2-tiny") == std::vector<std::string>{"self_attn.k_proj.bias",
                                                       "self_attn.q_proj.bias",
                                                       "self_attn.v_proj.bias"});
  CHECK(more("qwen3-tiny") ==
        std::vector<std::string>{"self_attn.k_norm.weight", "self_attn.q_norm.weight"});
  CHECK(tensors("qwen3-moe-tiny").size() == 3 + 4 * (8 + 1 + 16 * 3));
  CHECK(tensors("moe-tiny").count("model.layers.0.block_sparse_moe.gate.weight") == 1);
  CHECK(tensors("moe-tiny").count("model.layers.7.block_sparse_moe.experts.7.w2.weight") == 1);
  CHECK(tensors("moe-tiny").count("model.layers.0.mlp.up_proj.weight") == 0);
  CHECK(more("mla-tiny") ==
        std::vector<std::string>{"self_attn.kv_a_layernorm.weight",
                                 "self_attn.kv_a_proj_with_mqa.weight",
                                 "self_attn.kv_b_proj.weight", "self_attn.q_a_layernorm.weight",
                                 "self_attn.q_a_proj.weight", "self_attn.q_b_proj.weight"});
  CHECK(more("gpt2-tiny") ==
        std::vector<std::string>{"attn.c_attn.bias", "attn.c_attn.weight", "attn.c_proj.bias",
                                 "attn.c_proj.weight", "ln_1.bias", "ln_1.weight", "ln_2.bias",
                                 "ln_2.weight", "mlp.c_fc.bias", "mlp.c_fc.weight",
                                 "mlp.c_proj.bias", "mlp.c_proj.weight"});
  CHECK(tensors("gpt2-tiny").count("transformer.wpe.weight") == 1);
  CHECK(tensors("gpt2-tiny").count("transformer.ln_f.bias") == 1);
  CHECK(tensors("gpt2-tiny").count("lm_head.weight") == 0);
}

TEST_CASE("each fourth layer of SmolLM3 turns nothing; learned positions turn nothing anywhere") {
  const ModelConfig config = Shape("smollm3-3b");
  for (int layer = 0; layer < config.layers; ++layer) {
    INFO(layer);
    CHECK(HasRope(config, layer) == (layer % 4 != 3));
    CHECK(HasRope(Shape("llama-tiny"), layer));
    CHECK_FALSE(HasRope(Shape("gpt2-tiny"), layer));
  }
}

TEST_CASE("gpt-oss has biases of all its products, and a sink for each head, split as heads are") {
  const ModelConfig config = Shape("gpt-oss-tiny");
  const std::vector<UnitSpec> units = UnitsOf(config, testing::WholeModel(config), 4, 3);
  const UnitSpec& block = units[1];
  CHECK(config.layers == 8);
  CHECK(WindowOf(config, 0) == 16);
  CHECK(WindowOf(config, 1) == 0);
  const auto slice = [&](BlockTensor role) {
    return block.tensors.at(PlacesOf(block).at(role)).slices.front();
  };
  const ParameterSlice sinks = slice(kSinks);
  CHECK(sinks.name == "model.layers.0.self_attn.sinks");
  CHECK(sinks.global_shape == std::array<int64_t, 2>{1, 16});
  CHECK(sinks.offset == std::array<int64_t, 2>{0, 12});
  CHECK(sinks.extent == std::array<int64_t, 2>{1, 4});
  CHECK(sinks.initializer == Initializer::kNormal);
  CHECK_FALSE(sinks.decayed);
  CHECK(slice(kRouterLogitBias).name == "model.layers.0.mlp.router.bias");
  CHECK(slice(kExpertGateUpBias).name == "model.layers.0.mlp.experts.0.gate_proj.bias");
  CHECK(slice(kExpertGateUpBias).offset == std::array<int64_t, 2>{0, 72});
  CHECK(slice(kExpertDownBias).extent == std::array<int64_t, 2>{1, 64});
  CHECK(slice(kExpertDownBias).tp_copies == 4);
}

TEST_CASE("weights start as numbers, norms as ones, biases as zeros") {
  for (const char* name : {"llama-tiny", "qwen2-tiny", "qwen3-tiny", "gpt2-tiny", "mla-tiny"}) {
    const ModelConfig config = Shape(name);
    for (const UnitSpec& unit : UnitsOf(config, testing::WholeModel(config), 1, 0)) {
      for (const UnitTensor& tensor : unit.tensors) {
        for (const ParameterSlice& slice : tensor.slices) {
          INFO(name << ": " << slice.name);
          const bool is_matrix = slice.global_shape[0] > 1;
          const bool is_bias = slice.name.ends_with(".bias");
          CHECK(slice.decayed == is_matrix);
          CHECK((slice.initializer == Initializer::kNormal) == is_matrix);
          CHECK((slice.initializer == Initializer::kZeros) == is_bias);
        }
      }
    }
  }
}

TEST_CASE("every name is listed in order and gives a valid shape") {
  const std::vector<std::string> names = ModelNames();
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const std::string& name : names) {
    INFO(name);
    CHECK_OK(ValidateModel(Shape(name), Layout{}));
  }
  CHECK(Shape("llama-70b") == Shape("llama-3-70b"));
}

TEST_CASE("norms over all heads of a token are split over no ranks") {
  CHECK_STATUS(ValidateModel(Shape("olmo2-7b"), Layout{.tp = 2}),
               absl::StatusCode::kInvalidArgument,
               "norms over all heads of a token together cannot be split over tp_size 2; tp_size "
               "can be 1");
}

TEST_CASE("the small shapes can be split over every power of two up to 8") {
  for (const std::string& name : ModelNames()) {
    if (name.find("-tiny") == std::string::npos && name != "llama-15m") continue;
    if (Shape(name).family->whole_norms) continue;
    for (int parts : {1, 2, 4, 8}) {
      INFO(name << " over " << parts);
      CHECK_OK(ValidateModel(Shape(name), Layout{.pp = parts, .dp = 1, .tp = parts}));
    }
  }
}

}  // namespace
}  // namespace convene::worker
