#include "worker_runtime/model/shape_text.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {
namespace {

// `config` without what the text leaves out.
ModelConfig Told(ModelConfig config) {
  config.initializer_range = ModelConfig().initializer_range;
  const ExpertConfig plain;
  config.experts.balance_loss = plain.balance_loss;
  config.experts.z_loss = plain.z_loss;
  config.experts.bias_rate = plain.bias_rate;
  config.experts.memory_factor = plain.memory_factor;
  return config;
}

TEST_CASE("the text of every named shape says all of it") {
  for (const std::string& name : ModelNames()) {
    INFO(name);
    const ModelConfig config = NamedModel(name).value();
    const auto parsed = ParseShapeText(ShapeText(config));
    REQUIRE_OK(parsed.status());
    CHECK(*parsed == Told(config));
  }
}

TEST_CASE("a shape's text is the one that earlier checkpoints have") {
  CHECK(ShapeText(NamedModel("llama-3.2-1b").value()) ==
        "layers 16 hidden 2048 ffn 8192 heads 32/8x64 vocabulary 128256 theta 500000 scaled 32 "
        "(1 to 4 of 8192) epsilon 1e-05 tied");
  CHECK(ShapeText(NamedModel("gpt2-124m").value()) ==
        "gpt2 layers 12 hidden 768 ffn 3072 heads 12/12x64 vocabulary 50257 theta 10000 positions "
        "1024 epsilon 1e-05 tied");
  CHECK(ShapeText(NamedModel("granite-3.1-8b").value()) ==
        "granite layers 40 hidden 4096 ffn 12800 heads 32/8x128 vocabulary 49152 theta 1e+07 "
        "multipliers 12/0.0078125/0.22/16 epsilon 1e-05 tied");
}

TEST_CASE("scores keep their scale where no layer has a window") {
  ModelConfig config = NamedModel("gemma2-27b").value();
  config.sliding_window = 0;
  CHECK(ParseShapeText(ShapeText(config)).value() == config);
}

TEST_CASE("a number of many digits comes back") {
  ModelConfig config = NamedModel("llama-tiny").value();
  config.rope_theta = 1234567.125;
  config.norm_epsilon = 1.0 / 3;
  CHECK(ParseShapeText(ShapeText(config)).value() == config);
}

TEST_CASE("the text names adapters, where there are some") {
  ModelConfig config = NamedModel("llama-tiny").value();
  const std::string without = ShapeText(config);
  config.adapter = {.rank = 8, .alpha = 12.5};
  CHECK(ShapeText(config) == absl::StrCat(without, " adapters 8 alpha 12.5 of all"));
  CHECK(ParseShapeText(ShapeText(config)).value() == config);
  config.adapter.rank_stabilized = true;
  config.adapter.targets = {"q_proj", "mlp.down_proj"};
  CHECK(ShapeText(config) ==
        absl::StrCat(without, " adapters 8 alpha 12.5 stabilized of q_proj,mlp.down_proj"));
  CHECK(ParseShapeText(ShapeText(config)).value() == config);
  config.adapter.dropout = 0.05;
  CHECK(absl::StrContains(ShapeText(config), " alpha 12.5 dropout 0.05 stabilized of "));
  CHECK(ParseShapeText(ShapeText(config)).value() == config);
}

TEST_CASE("another text is no shape") {
  const std::string text = ShapeText(NamedModel("mla-tiny").value());
  for (size_t i = 0; i < text.size(); ++i) {
    INFO(text.substr(0, i));
    CHECK(ParseShapeText(text.substr(0, i)).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK_STATUS(ParseShapeText(absl::StrCat(text, " new 1")), absl::StatusCode::kInvalidArgument,
               "is no shape of a model that this program knows");
}

}  // namespace
}  // namespace convene::worker
