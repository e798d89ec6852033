#include "worker_runtime/weights/gguf_weights.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/gguf/testing/gguf_writer.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;
using testing::GgufWriter;

constexpr int kHidden = 8, kHeads = 2, kHeadSize = 4, kFfn = 6, kVocabulary = 10;

// Element i of the tensor is first + i.
std::vector<float> Rising(int rows, int columns, float first) {
  std::vector<float> values(static_cast<size_t>(rows) * columns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

using Change = std::function<void(const std::string& name, uint64_t* rows)>;

// One layer; `change` may give a tensor another number of rows, 0: none.
GgufWriter Model(const std::string& architecture, const Change& change = nullptr) {
  GgufWriter writer;
  const auto key = [&](const char* name) { return absl::StrCat(architecture, ".", name); };
  writer.Text("general.architecture", architecture)
      .Count(key("block_count"), 1)
      .Count(key("embedding_length"), kHidden)
      .Count(key("feed_forward_length"), kFfn)
      .Count(key("attention.head_count"), kHeads)
      .Count(key("attention.head_count_kv"), 1)
      .Real(key("attention.layer_norm_rms_epsilon"), 1e-5f)
      .Real(key("rope.freq_base"), 500000);
  const auto add = [&](const std::string& name, uint64_t rows, uint64_t columns, float first) {
    if (change != nullptr) change(name, &rows);
    if (rows == 0) return;
    std::vector<uint64_t> shape = {columns};
    if (rows > 1) shape.push_back(rows);
    writer.Floats(name, shape, Rising(static_cast<int>(rows), static_cast<int>(columns), first));
  };
  add("token_embd.weight", kVocabulary, kHidden, 1000);
  add("output_norm.weight", 1, kHidden, 2000);
  add("blk.0.attn_norm.weight", 1, kHidden, 3000);
  add("blk.0.attn_q.weight", kHeads * kHeadSize, kHidden, 4000);
  add("blk.0.attn_k.weight", kHeadSize, kHidden, 5000);
  add("blk.0.attn_v.weight", kHeadSize, kHidden, 6000);
  if (architecture == "qwen2") {
    add("blk.0.attn_q.bias", 1, kHeads * kHeadSize, 100);
    add("blk.0.attn_k.bias", 1, kHeadSize, 200);
    add("blk.0.attn_v.bias", 1, kHeadSize, 300);
  }
  add("blk.0.attn_output.weight", kHidden, kHeads * kHeadSize, 7000);
  add("blk.0.ffn_norm.weight", 1, kHidden, 8000);
  add("blk.0.ffn_gate.weight", kFfn, kHidden, 9000);
  add("blk.0.ffn_up.weight", kFfn, kHidden, 10000);
  add("blk.0.ffn_down.weight", kHidden, kFfn, 11000);
  return writer;
}

absl::StatusOr<Weights> Open(const TempDir& folder, const GgufWriter& writer) {
  REQUIRE_OK(WriteFileAtomic(folder.File("model.gguf"), writer.File()));
  return OpenWeights(folder.File("model.gguf"));
}

std::vector<float> Read(const Weights& weights, const std::string& name, std::vector<int64_t> shape,
                        int64_t first_row, int64_t rows) {
  std::vector<float> read(rows * shape[1]);
  const TensorPiece piece = {.name = name,
                             .global_shape = shape,
                             .local_box = {{first_row, 0}, {rows, shape[1]}},
                             .flat_count = rows * shape[1]};
  REQUIRE_OK(weights.source->Read({{piece, absl::MakeSpan(read)}}));
  return read;
}

TEST_CASE("the shape comes from the file's facts and tensors") {
  const TempDir folder;
  const auto weights = Open(folder, Model("llama"));
  REQUIRE_OK(weights.status());
  CHECK(weights->config == ModelConfig{.layers = 1,
                                       .hidden_size = kHidden,
                                       .ffn_size = kFfn,
                                       .heads = kHeads,
                                       .kv_heads = 1,
                                       .head_size = kHeadSize,
                                       .vocabulary_size = kVocabulary,
                                       .rope_theta = 500000,
                                       .norm_epsilon = 1e-5,
                                       .tied_embeddings = true});
  CHECK(weights->tokenizer->empty());
  CHECK(weights->longest_text == 0);
  CHECK(Open(folder, Model("llama").Count("llama.context_length", 2048))->longest_text == 2048);
}

TEST_CASE("a rank reads its rows, and rows of heads stand as halves") {
  const TempDir folder;
  const auto weights = Open(folder, Model("llama"));
  REQUIRE_OK(weights.status());
  const std::string layer = "model.layers.0.";
  const auto row = [](float first, int number) { return Rising(1, kHidden, first + 8.f * number); };
  CHECK(Read(*weights, "model.embed_tokens.weight", {kVocabulary, kHidden}, 7, 1) == row(1000, 7));
  CHECK(Read(*weights, layer + "mlp.up_proj.weight", {kFfn, kHidden}, 5, 1) == row(10000, 5));
  CHECK(Read(*weights, layer + "self_attn.v_proj.weight", {kHeadSize, kHidden}, 1, 1) ==
        row(6000, 1));
  CHECK(Read(*weights, "model.norm.weight", {1, kHidden}, 0, 1) == row(2000, 0));
  // Pairs (0, 1) (2, 3) of a head become halves (0, 2) (1, 3).
  for (const int head : {0, 1}) {
    for (int i = 0; i < kHeadSize; ++i) {
      const int pair[] = {0, 2, 1, 3};
      CHECK(Read(*weights, layer + "self_attn.q_proj.weight", {kHeads * kHeadSize, kHidden},
                 head * kHeadSize + i, 1) == row(4000, head * kHeadSize + pair[i]));
    }
  }
  CHECK(Read(*weights, layer + "self_attn.k_proj.weight", {kHeadSize, kHidden}, 2, 1) ==
        row(5000, 1));
}

TEST_CASE("Qwen's rows stand as ours do, and have biases") {
  const TempDir folder;
  const auto weights = Open(folder, Model("qwen2"));
  REQUIRE_OK(weights.status());
  CHECK(Read(*weights, "model.layers.0.self_attn.k_proj.weight", {kHeadSize, kHidden}, 2, 1) ==
        Rising(1, kHidden, 5000 + 16));
  CHECK(Read(*weights, "model.layers.0.self_attn.v_proj.bias", {1, kHeadSize}, 0, 1) ==
        Rising(1, kHeadSize, 300));
}

TEST_CASE("Llama 3's factors of rotary positions become its scaling") {
  const TempDir folder;
  // The second frequency turns less than once within the original context.
  const auto weights = Open(folder, Model("llama")
                                        .Count("llama.rope.scaling.original_context_length", 2048)
                                        .Floats("rope_freqs.weight", {2}, {1, 8}));
  REQUIRE_OK(weights.status());
  CHECK(weights->config.rope_scaling ==
        RopeScaling{.factor = 8, .kind = RopeScalingKind::kLlama3, .original_positions = 2048});
}

TEST_CASE("linear scaling is read as llama.cpp reads it, also where no key names it") {
  const TempDir folder;
  const auto scaling = [&](const GgufWriter& writer) {
    const auto weights = Open(folder, writer);
    REQUIRE_OK(weights.status());
    return weights->config.rope_scaling;
  };
  const RopeScaling fourfold = {.factor = 4, .kind = RopeScalingKind::kLinear};
  CHECK(scaling(Model("llama").Real("llama.rope.scaling.factor", 4)) == fourfold);
  CHECK(scaling(Model("llama").Real("llama.rope.scale_linear", 4)) == fourfold);
  CHECK(
      scaling(
          Model("llama").Real("llama.rope.scale_linear", 2).Real("llama.rope.scaling.factor", 4)) ==
      fourfold);
  CHECK(scaling(Model("llama")
                    .Text("llama.rope.scaling.type", "linear")
                    .Real("llama.rope.scaling.factor", 4)) == fourfold);
  CHECK(scaling(Model("llama").Real("llama.rope.scaling.factor", 0)) == RopeScaling());
  CHECK(scaling(Model("llama").Text("llama.rope.scaling.type", "linear")) == RopeScaling());
  CHECK(scaling(Model("llama")
                    .Text("llama.rope.scaling.type", "none")
                    .Real("llama.rope.scaling.factor", 4)) == RopeScaling());
}

TEST_CASE("a file that is not the model it names is refused") {
  const TempDir folder;
  const auto refuse = [&](const GgufWriter& writer, absl::StatusCode code, const char* why) {
    CHECK_STATUS(Open(folder, writer), code, why);
  };
  const auto with_rows = [](const std::string& of, uint64_t count) {
    return Model("llama", [=](const std::string& name, uint64_t* rows) {
      if (name == of) *rows = count;
    });
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  refuse(GgufWriter().Count("split.count", 3).Count("split.no", 1),
         absl::StatusCode::kUnimplemented, "part 2 of 3 of a GGUF file");
  refuse(with_rows("blk.0.ffn_up.weight", 0).Count("split.count", 3).Count("split.no", 0),
         absl::StatusCode::kUnimplemented, "part 1 of 3 of a GGUF file");
  CHECK_OK(Open(folder, Model("llama").Count("split.count", 1).Count("split.no", 0)).status());
  refuse(Model("mamba"), absl::StatusCode::kUnimplemented, "of architecture 'mamba'");
  refuse(with_rows("blk.0.ffn_up.weight", 0), kInvalid, "lacks the tensor 'blk.0.ffn_up.weight'");
  refuse(with_rows("token_embd.weight", 0), kInvalid, "lacks the tensor 'token_embd.weight'");
  refuse(with_rows("blk.0.ffn_up.weight", 5), kInvalid,
         "'blk.0.ffn_up.weight' has the shape [5, 8], and the model wants [6, 8]");
  refuse(Model("llama").Floats("blk.1.attn_q.weight", {8, 8}, Rising(8, 8, 0)), kInvalid,
         "'blk.1.attn_q.weight' is none of the model's");
  refuse(Model("llama").Floats("rope_freqs.weight", {2}, {1, 7}), absl::StatusCode::kUnimplemented,
         "'rope_freqs.weight' has other factors than Llama 3's");
  refuse(Model("llama").Floats("rope_freqs.weight", {3}, {1, 1, 1}),
         absl::StatusCode::kUnimplemented, "has other factors");
  refuse(Model("llama").Floats("rope_factors_long.weight", {2}, {1, 1}),
         absl::StatusCode::kUnimplemented, "(factors of rotary positions)");
  refuse(Model("llama").Count("llama.expert_count", 8), absl::StatusCode::kUnimplemented,
         "'llama.expert_count'");
  refuse(Model("llama").Text("llama.rope.scaling.type", "yarn"), absl::StatusCode::kUnimplemented,
         "rope.scaling.type 'yarn'");
  refuse(Model("llama").Count("llama.rope.dimension_count", 2), absl::StatusCode::kUnimplemented,
         "'llama.rope.dimension_count' is 2, and its heads have 4 elements");
  refuse(GgufWriter().Text("general.architecture", "llama"), absl::StatusCode::kNotFound,
         "no key 'llama.block_count'");
}

}  // namespace
}  // namespace convene::worker
