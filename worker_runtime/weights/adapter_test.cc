#include "worker_runtime/weights/adapter.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/merged_weights.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/open_weights.h"
#include "worker_runtime/weights/peft_config.h"
#include "worker_runtime/weights/safetensors.h"
#include "worker_runtime/weights/testing/hf_folders.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

ModelConfig Small(const char* name = "llama-tiny") {
  ModelConfig config = NamedModel(name).value();
  config.layers = 2;
  config.vocabulary_size = 16;
  // Mixtral's folders have one size for both.
  if (config.family->name == std::string("mixtral")) config.ffn_size = config.experts.ffn_size;
  return config;
}

ModelConfig Adapted(ModelConfig config) {
  config.adapter = {.rank = 2, .alpha = 3, .targets = {"self_attn.v_proj", "mlp.down_proj"}};
  return config;
}

// Element i of a tensor of this name.
float ValueAt(const std::string& name, int64_t i) {
  return static_cast<float>(
      std::sin(static_cast<double>(name.size()) + 0.01 * static_cast<double>(i)));
}

std::vector<float> ValuesOf(const ModelTensor& tensor) {
  std::vector<float> values(tensor.shape[0] * tensor.shape[1]);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ValueAt(tensor.name, static_cast<int64_t>(i));
  }
  return values;
}

// The tensors of adapters in PEFT's file, and its configuration.
class Folder {
 public:
  Folder(const ModelConfig& model, const std::string& base) {
    for (const ModelTensor& tensor : AdapterTensors(model)) {
      tensors_[absl::StrCat(kPeftPrefix, tensor.name)] = {{tensor.shape[0], tensor.shape[1]},
                                                          ValuesOf(tensor)};
    }
    config_ = absl::StrCat(R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "bias": "none",
      "target_modules": ["v_proj", "down_proj"], "base_model_name_or_path": ")",
                           base, "\"}");
  }

  std::string& config() { return config_; }
  std::map<std::string, testing::FolderTensor>& tensors() { return tensors_; }
  void Write(const std::string& path) const {
    REQUIRE_OK(MakeDirectories(path));
    REQUIRE_OK(WriteFileAtomic(absl::StrCat(path, "/", kPeftConfigName), config_));
    std::vector<SafeTensor> headers;
    std::string bytes;
    for (const auto& [name, tensor] : tensors_) {
      headers.push_back({.name = name, .type = "F32", .shape = tensor.shape});
      bytes.append(reinterpret_cast<const char*>(tensor.values.data()),
                   tensor.values.size() * sizeof(float));
    }
    REQUIRE_OK(WriteFileAtomic(absl::StrCat(path, "/", kPeftWeightsName),
                               MakeSafeTensorsHeader(&headers) + bytes));
  }

 private:
  std::map<std::string, testing::FolderTensor> tensors_;
  std::string config_;
};

std::vector<float> ReadAll(const StateSource& source, const ModelTensor& tensor) {
  const TensorPiece piece = RowsOf(tensor, 0, tensor.file_rows());
  std::vector<float> values(piece.flat_count);
  REQUIRE_OK(source.Read({{piece, absl::MakeSpan(values)}}));
  return values;
}

TEST_CASE("weights of an adapter are its base's with the adapters added, and no others change") {
  for (const char* const name : {"llama-tiny", "gpt2-tiny", "moe-tiny"}) {
    INFO(name);
    TempDir dir;
    const ModelConfig model = Small(name);
    ModelConfig adapted = Adapted(model);
    if (model.family->fused_qkv) adapted.adapter.targets = {"attn.c_attn", "mlp.c_proj"};
    if (model.experts.count > 0) adapted.adapter.targets = {"w1", "w2"};
    testing::WriteHfFolder(dir.File("base"), model, testing::TensorsOf(model));
    Folder(adapted, dir.File("base")).Write(dir.File("adapter"));
    const auto base = OpenWeights(dir.File("base"));
    const auto merged = OpenWeights(dir.File("adapter"));
    REQUIRE_OK(base.status());
    REQUIRE_OK(merged.status());
    CHECK(ShapeText(merged->config) == ShapeText(model));
    int changed = 0;
    for (const ModelTensor& tensor : ModelTensors(model)) {
      const std::vector<float> before = ReadAll(*base->source, tensor);
      const std::vector<float> after = ReadAll(*merged->source, tensor);
      const std::string matrix = tensor.name.substr(0, tensor.name.rfind('.'));
      const bool is_target = IsTarget(adapted.adapter, matrix) && tensor.shape[0] > 1;
      INFO(tensor.name);
      if (!is_target) {
        CHECK(after == before);
        continue;
      }
      ++changed;
      const int64_t columns = tensor.shape[1];
      for (const int64_t row : {int64_t{0}, tensor.shape[0] - 1}) {
        for (const int64_t column : {int64_t{0}, int64_t{3}, columns - 1}) {
          double added = 0;
          for (int64_t k = 0; k < 2; ++k) {
            added += 1.5 * double{ValueAt(AdapterB(matrix), row * 2 + k)} *
                     double{ValueAt(AdapterA(matrix), k * columns + column)};
          }
          CHECK(after[row * columns + column] ==
                Approx(before[row * columns + column] + added).margin(1e-5));
        }
      }
    }
    CHECK(changed == 4 * std::max(1, model.experts.count));
  }
}

TEST_CASE("a piece of a merged tensor has the bits of the whole, and rounds once") {
  TempDir dir;
  const ModelConfig model = Small();
  testing::WriteHfFolder(dir.File("base"), model, testing::TensorsOf(model));
  Folder(Adapted(model), dir.File("base")).Write(dir.File("adapter"));
  const auto merged = OpenWeights(dir.File("adapter"));
  REQUIRE_OK(merged.status());
  for (const ModelTensor& tensor : ModelTensors(model)) {
    if (!absl::StrContains(tensor.name, "layers.1.mlp.down_proj")) continue;
    const std::vector<float> whole = ReadAll(*merged->source, tensor);
    const int64_t columns = tensor.shape[1];
    // Rows 3 to 7, columns 2 to 12 but for the first and the last four elements.
    const Box box = {{3, 2}, {4, 10}};
    TensorPiece piece = {tensor.name, {tensor.shape[0], columns}, box, 4, 32};
    std::vector<float> part(32);
    std::vector<BFloat16> rounded(32);
    REQUIRE_OK(merged->source->Read({{piece, absl::MakeSpan(part)}}));
    REQUIRE_OK(merged->source->Read({{piece, absl::MakeSpan(rounded)}}));
    for (int64_t i = 0; i < 32; ++i) {
      const float wanted = whole[(3 + (i + 4) / 10) * columns + 2 + (i + 4) % 10];
      CHECK(part[i] == wanted);
      CHECK(static_cast<float>(rounded[i]) == static_cast<float>(BFloat16(wanted)));
    }
  }
}

TEST_CASE("adapters go out as they came in") {
  TempDir dir;
  const ModelConfig model = Small();
  testing::WriteHfFolder(dir.File("base"), model, testing::TensorsOf(model));
  Folder(Adapted(model), dir.File("base")).Write(dir.File("adapter"));
  const auto adapter = OpenAdapter(dir.File("adapter"));
  REQUIRE_OK(adapter.status());
  CHECK(adapter->config.rank == 2);
  CHECK(adapter->config.scale() == 1.5);
  CHECK(adapter->config.targets == std::vector<std::string>{"mlp.down_proj", "self_attn.v_proj"});
  REQUIRE_OK(ExportPeft(*adapter, Adapted(model), dir.File("again")));
  const auto again = OpenAdapter(dir.File("again"));
  REQUIRE_OK(again.status());
  CHECK(again->config == adapter->config);
  CHECK(again->base == dir.File("base"));
  CHECK(again->tensors == adapter->tensors);
  for (const ModelTensor& tensor : AdapterTensors(Adapted(model))) {
    CHECK(ReadAll(*again->source, tensor) == ValuesOf(tensor));
  }
}

TEST_CASE("a folder of adapters that cannot be used says why") {
  TempDir dir;
  const ModelConfig model = Small();
  testing::WriteHfFolder(dir.File("base"), model, testing::TensorsOf(model));
  const std::string first = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight";
  const auto opened = [&](const auto& change) -> absl::Status {
    Folder folder(Adapted(model), dir.File("base"));
    change(folder);
    REQUIRE_OK(RemoveTree(dir.File("adapter")));
    folder.Write(dir.File("adapter"));
    return OpenWeights(dir.File("adapter")).status();
  };
  const auto with = [&](const char* from, const std::string& to) -> absl::Status {
    return opened([&](Folder& f) { f.config() = absl::StrReplaceAll(f.config(), {{from, to}}); });
  };
  REQUIRE_OK(opened([](Folder&) {}));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kLacks = absl::StatusCode::kUnimplemented;
  CHECK_STATUS(with("LORA", "IA3"), kLacks, "\"peft_type\" is \"IA3\"; adapters here are LORA's");
  CHECK_STATUS(with("\"r\"", R"("use_dora": true, "r")"), kLacks, "\"use_dora\" is set");
  CHECK_STATUS(with("\"r\"", R"("rank_pattern": {"q_proj": 4}, "r")"), kLacks, "\"rank_pattern\"");
  CHECK_STATUS(with("\"none\"", "\"all\""), kLacks, "\"bias\" is \"all\"");
  CHECK_STATUS(with("\"r\": 2", "\"r\": 0"), kInvalid, "\"r\" must be at least 1");
  CHECK_STATUS(with("\"r\": 2", "\"r\": 4"), kInvalid, "which is not of rank 4");
  CHECK_STATUS(with("\"lora_alpha\": 3", "\"lora_alpha\": -3"), kInvalid, "lora_alpha");
  CHECK_STATUS(with("\"r\"", R"("lora_dropout": 1, "r")"), kInvalid, "from 0 to below 1");
  CHECK_STATUS(with("\"peft_type\"", "peft_type"), kInvalid, "adapter_config.json");
  CHECK_STATUS(with("/base\"", "/nowhere\""), absl::StatusCode::kNotFound,
               "/nowhere, which cannot be opened");
  CHECK_STATUS(with("/base\"", "/adapter\""), kInvalid, "these are adapters too");
  CHECK_STATUS(opened([&](Folder& f) { f.tensors().erase(first); }), kInvalid,
               "and no \"model.layers.0.mlp.down_proj.lora_A.weight\"");
  CHECK_STATUS(opened([&](Folder& f) { f.tensors().clear(); }), kInvalid, "has no adapter at all");
  CHECK_STATUS(opened([&](Folder& f) {
                 f.tensors()["lm_head.weight"] = {{1, 1}, {1}};
               }),
               kInvalid, "\"lm_head.weight\" is no lora_A or lora_B of a matrix");
  // As PEFT names adapters of fused parameters (target_parameters).
  for (const char* const module : {"experts", "experts.base_layer"}) {
    CHECK_STATUS(opened([&](Folder& f) {
                   f.tensors()[absl::StrCat("base_model.model.model.layers.0.mlp.", module,
                                            ".lora_A.weight")] = {{1, 1}, {1}};
                 }),
                 kLacks, "is one adapter of all experts of a layer");
  }
  CHECK_STATUS(opened([&](Folder& f) {
                 f.tensors()[first] = {{2, 3}, std::vector<float>(6)};
               }),
               kInvalid, "is 2 x 3, and this model wants 2 x");
  CHECK_STATUS(
      opened([&](Folder& f) {
        for (const char* const half : {".lora_A.weight", ".lora_B.weight"}) {
          f.tensors().erase(absl::StrCat("base_model.model.model.layers.0.mlp.down_proj", half));
        }
      }),
      kInvalid, "or to a part of the layers");
  REQUIRE_OK(RemoveTree(dir.File("adapter")));
  Folder(Adapted(model), dir.File("base")).Write(dir.File("adapter"));
  REQUIRE_OK(RemoveTree(dir.File("adapter") + "/adapter_model.safetensors"));
  CHECK_STATUS(OpenAdapter(dir.File("adapter")).status(), kInvalid,
               "adapters are read from safetensors");
}

TEST_CASE("a checkpoint of adapters is the model that they make, where their base lies") {
  TempDir dir;
  const ModelConfig model = Small();
  const ModelConfig adapted = Adapted(model);
  testing::WriteHfFolder(dir.File("base"), model, testing::TensorsOf(model));
  Folder(adapted, dir.File("base")).Write(dir.File("adapter"));
  std::vector<std::vector<float>> values;
  std::vector<PieceToWrite> pieces;
  for (const ModelTensor& tensor : AdapterTensors(adapted)) {
    values.push_back(ValuesOf(tensor));
    pieces.push_back({RowsOf(tensor, 0, tensor.file_rows()), absl::MakeConstSpan(values.back())});
  }
  REQUIRE_OK(WriteShard(dir.File("job"), 7, 0, pieces));
  REQUIRE_OK(PublishCheckpoint(
      dir.File("job"),
      {.step = 7, .model = ShapeText(adapted), .base = dir.File("base"), .longest_text = 5000}));
  const auto of_job = OpenWeights(dir.File("job"));
  const auto of_folder = OpenWeights(dir.File("adapter"));
  REQUIRE_OK(of_job.status());
  REQUIRE_OK(of_folder.status());
  CHECK(of_folder->longest_text == 4096);  // its base's
  CHECK(of_job->longest_text == 5000);
  for (const ModelTensor& tensor : ModelTensors(model)) {
    CHECK(ReadAll(*of_job->source, tensor) == ReadAll(*of_folder->source, tensor));
  }
  REQUIRE_OK(RenameFile(dir.File("base"), dir.File("moved")));
  CHECK_STATUS(OpenWeights(dir.File("job")).status(), absl::StatusCode::kNotFound,
               "say where they are with --base");
  const auto beside_moved = OpenWeights(dir.File("job"), dir.File("moved"));
  REQUIRE_OK(beside_moved.status());
  for (const ModelTensor& tensor : ModelTensors(model)) {
    CHECK(ReadAll(*beside_moved->source, tensor) == ReadAll(*of_folder->source, tensor));
  }
  CHECK_STATUS(OpenWeights(dir.File("moved"), dir.File("moved")).status(),
               absl::StatusCode::kInvalidArgument, "leave --base out");
  CHECK(OpenAdapter(dir.File("job")).ok());
}

TEST_CASE("PEFT's configuration is read as it was written") {
  const AdapterConfig adapter = {.rank = 4, .alpha = 6.5, .rank_stabilized = true, .dropout = 0.05};
  const PeftConfig config = {.adapter = adapter, .base = "/base"};
  const auto read = ReadPeftConfig(WritePeftConfig(config, {"q_proj"}, /*turned_matrices=*/false));
  REQUIRE_OK(read);
  CHECK(read->adapter == adapter);
  CHECK(read->base == "/base");
}

TEST_CASE("adapters whose beginning changed their base are refused") {
  const auto read = [](const char* beginning) {
    return ReadPeftConfig(
        absl::StrCat(R"({"peft_type": "LORA", "r": 2, "init_lora_weights": )", beginning, "}"));
  };
  for (const char* const name : {"pissa", "pissa_niter_16", "olora", "corda", "loftq"}) {
    CHECK_STATUS(read(absl::StrCat("\"", name, "\"").c_str()), absl::StatusCode::kUnimplemented,
                 absl::StrCat("\"init_lora_weights\" is \"", name, "\""));
  }
  for (const char* const plain :
       {"true", "false", "null", "\"gaussian\"", "\"eva\"", "\"orthogonal\""}) {
    INFO(plain);
    CHECK_OK(read(plain));
  }
}

TEST_CASE("adapters of experts come in by each expert's number, and go out so") {
  TempDir dir;
  const ModelConfig model = Small("moe-tiny");
  ModelConfig adapted = model;
  adapted.adapter = {.rank = 2, .alpha = 3, .targets = {"w1", "w2", "w3", "v_proj"}};
  testing::WriteHfFolder(dir.File("base"), model, testing::TensorsOf(model));
  Folder folder(adapted, dir.File("base"));
  folder.Write(dir.File("adapter"));
  auto adapter = OpenAdapter(dir.File("adapter"));
  REQUIRE_OK(adapter.status());
  const std::string experts = "block_sparse_moe.experts.*.";
  CHECK(adapter->config.targets == std::vector<std::string>{experts + "w1", experts + "w2",
                                                            experts + "w3", "self_attn.v_proj"});
  adapter->config.rank_stabilized = true;
  adapter->config.dropout = 0.5;
  REQUIRE_OK(ExportPeft(*adapter, adapted, dir.File("again")));
  const auto config = ReadFile(dir.File("again") + "/adapter_config.json");
  REQUIRE_OK(config);
  CHECK(absl::StrContains(*config, "\"block_sparse_moe.experts.3.w2\""));
  CHECK_FALSE(absl::StrContains(*config, "*"));
  const auto again = OpenAdapter(dir.File("again"));
  REQUIRE_OK(again.status());
  CHECK(again->config.targets == adapter->config.targets);
  CHECK(again->config.scale() == adapter->config.scale());
  CHECK_FALSE(again->config.rank_stabilized);
  CHECK(again->config.dropout == 0);
  CHECK(again->tensors == adapter->tensors);
  for (const ModelTensor& tensor : AdapterTensors(adapted)) {
    CHECK(ReadAll(*again->source, tensor) == ValuesOf(tensor));
  }
  for (const char* const half : {"A", "B"}) {
    folder.tensors().erase(absl::StrCat(kPeftPrefix, "model.layers.1.block_sparse_moe.experts.3.w2",
                                        ".lora_", half, ".weight"));
  }
  folder.Write(dir.File("some"));
  CHECK_STATUS(OpenWeights(dir.File("some")).status(), absl::StatusCode::kInvalidArgument,
               "it has no \"model.layers.1.block_sparse_moe.experts.3.w2.lora_A.weight\"");
}

TEST_CASE("adapters that PEFT would take for others, or has not, stay here") {
  TempDir dir;
  const auto exported = [&](const char* name, std::vector<std::string> targets) {
    ModelConfig model = Small(name);
    model.adapter = {.rank = 2, .alpha = 3, .targets = std::move(targets)};
    REQUIRE_OK(ValidateAdapters(model, /*tp_size=*/1));
    Adapter adapter = {.config = model.adapter};
    for (const ModelTensor& tensor : AdapterTensors(model))
      adapter.tensors[tensor.name] = tensor.shape;
    return ExportPeft(adapter, model, dir.File("out"));
  };
  constexpr auto kLacks = absl::StatusCode::kUnimplemented;
  CHECK_STATUS(exported("deepseek-tiny", {}), kLacks, "for adapters of the experts");
  CHECK_STATUS(exported("deepseek-tiny", {"gate_proj", "up_proj"}), kLacks,
               "for adapters of the experts");
  CHECK_STATUS(exported("moe-tiny", {"w1", "w2"}), kLacks,
               "PEFT has adapters on block_sparse_moe.experts.*.w1 only beside such on "
               "block_sparse_moe.experts.*.w3");
  CHECK_STATUS(exported("gpt-oss-tiny", {"down_proj"}), kLacks,
               "PEFT has no adapters of single experts of gpt_oss");
}

}  // namespace
}  // namespace convene::worker
