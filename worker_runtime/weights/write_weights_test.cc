#include "worker_runtime/weights/write_weights.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/compare_weights.h"
#include "worker_runtime/weights/testing/hf_folders.h"
#include "worker_runtime/weights/tokenizer_files.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;
using testing::FolderTensors;
using testing::TensorsOf;
using testing::WriteHfFolder;

ModelConfig Small(const std::string& name) {
  ModelConfig config = NamedModel(name).value();
  config.layers = 2;
  if (config.family->learned_positions) config.positions = 32;
  return config;
}

TEST_CASE("a folder comes back bit for bit, through a checkpoint") {
  for (const std::string name :
       {"llama-tiny", "gpt2-tiny", "moe-tiny", "mla-tiny", "gpt-oss-tiny"}) {
    INFO(name);
    const TempDir dir;
    const ModelConfig config = Small(name);
    WriteHfFolder(dir.File("a"), config, TensorsOf(config));
    const auto weights = OpenWeights(dir.File("a"));
    REQUIRE_OK(weights.status());
    REQUIRE_OK(ImportCheckpoint(*weights, dir.File("b")));
    const auto imported = OpenWeights(dir.File("b"));
    REQUIRE_OK(imported.status());
    CHECK(CompareWeights(*weights, *imported).value().empty());
    REQUIRE_OK(ExportHf(*imported, {.output = dir.File("c")}));
    const auto exported = OpenWeights(dir.File("c"));
    REQUIRE_OK(exported.status());
    CHECK(ShapeText(exported->config) == ShapeText(weights->config));
    CHECK(CompareWeights(*weights, *exported).value().empty());
  }
}

TEST_CASE("the longest text that a model was made for goes through checkpoints and averages") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  WriteHfFolder(dir.File("a"), config, TensorsOf(config));
  REQUIRE_OK(WriteFileAtomic(dir.File("a/config.json"),
                             WriteHfConfig(config, {.positions = 32768}).value()));
  REQUIRE_OK(ImportCheckpoint(OpenWeights(dir.File("a")).value(), dir.File("b")));
  CHECK(OpenWeights(dir.File("b"))->longest_text == 32768);
  std::vector<Weights> all;
  for (const char* const name : {"a", "b"}) all.push_back(OpenWeights(dir.File(name)).value());
  REQUIRE_OK(ImportCheckpoint(AverageWeights(std::move(all)).value(), dir.File("c")));
  CHECK(OpenWeights(dir.File("c"))->longest_text == 32768);
}

TEST_CASE("tensors go into several files, of few bytes each") {
  const TempDir dir;
  const ModelConfig config = Small("qwen3-tiny");
  WriteHfFolder(dir.File("a"), config, TensorsOf(config));
  const auto weights = OpenWeights(dir.File("a"));
  REQUIRE_OK(weights.status());
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("b"),
                                 .type = DType::kBFloat16,
                                 .file_bytes = 40000,
                                 .other_files = {{"merges.txt", "a b"}}}));
  const std::vector<std::string> names = ListDirectory(dir.File("b")).value();
  CHECK(std::count(names.begin(), names.end(), "model.safetensors") == 0);
  CHECK(std::count(names.begin(), names.end(), "model.safetensors.index.json") == 1);
  CHECK(ReadFile(dir.File("b/merges.txt")).value() == "a b");
  for (const std::string& name : names) {
    CHECK(ReadFile(absl::StrCat(dir.File("b"), "/", name))->size() < 50000);
  }
  const auto exported = OpenWeights(dir.File("b"));
  REQUIRE_OK(exported.status());
  // Values to 2^14 in steps of a quarter are rounded to eight bits.
  const auto differences = CompareWeights(*weights, *exported);
  REQUIRE_OK(differences.status());
  REQUIRE_FALSE(differences->empty());
  CHECK(differences->front().largest <= 64);
}

TEST_CASE("a folder that gets the files of a tokenizer has them all, in their folders") {
  const TempDir dir;
  const std::vector<NamedFile> files = {{"additional_chat_templates/tool_use.jinja", "t"},
                                        {"chat_template.jinja", "d"},
                                        {"tiktoken.model", "m"},
                                        {"tokenizer.json", "{}"}};
  for (const NamedFile& file : files) REQUIRE_OK(WriteNamedFile(dir.File("a"), file));
  REQUIRE_OK(WriteFileAtomic(dir.File("a/additional_chat_templates/rag.jinja"), "r"));
  const auto found = TokenizerFiles(dir.File("a"));
  REQUIRE_OK(found.status());
  REQUIRE(found->size() == files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    CHECK(found->at(i).name == files[i].name);
    CHECK(found->at(i).content == files[i].content);
  }
}

TEST_CASE("the end tokens of config.json go with a tokenizer as those of its generation") {
  const TempDir dir;
  const auto generation = [&] {
    const auto files = TokenizerFiles(dir.path());
    REQUIRE_OK(files.status());
    return files->empty() ? "" : files->front().name + files->front().content;
  };
  REQUIRE_OK(WriteFileAtomic(dir.File("config.json"), R"({"eos_token_id": null})"));
  CHECK(generation().empty());
  REQUIRE_OK(WriteFileAtomic(dir.File("config.json"),
                             R"({"bos_token_id": 1, "eos_token_id": [5, 7], "hidden_size": 8})"));
  CHECK(generation() == "generation_config.json{\"bos_token_id\":1,\"eos_token_id\":[5,7]}\n");
  REQUIRE_OK(WriteFileAtomic(dir.File("generation_config.json"),
                             R"({"top_p": 0.5, "bos_token_id": 2, "eos_token_id": null})"));
  CHECK(generation() ==
        "generation_config.json{\"top_p\":0.5,\"bos_token_id\":2,\"eos_token_id\":[5,7]}\n");
  REQUIRE_OK(WriteFileAtomic(dir.File("generation_config.json"), R"({ "eos_token_id": 3 })"));
  CHECK(generation() == R"(generation_config.json{ "eos_token_id": 3 })");
}

TEST_CASE("a full disk leaves nothing under the output's name") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  WriteHfFolder(dir.File("a"), config, TensorsOf(config));
  const auto weights = OpenWeights(dir.File("a"));
  REQUIRE_OK(weights.status());
  {
    const ScopedFileFault fault([](FileOp op, const std::string& path) {
      return op == FileOp::kWrite && path.find(".safetensors") != std::string::npos ? ENOSPC : 0;
    });
    CHECK_STATUS(ExportHf(*weights, {.output = dir.File("b")}),
                 absl::StatusCode::kResourceExhausted, "model.safetensors");
  }
  CHECK(ListDirectory(dir.path()).value() == std::vector<std::string>{"a"});
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("b")}));
  CHECK_STATUS(ExportHf(*weights, {.output = dir.File("b")}), absl::StatusCode::kAlreadyExists,
               "is there already");
  CHECK_STATUS(ImportCheckpoint(*weights, dir.File("b")), absl::StatusCode::kAlreadyExists,
               "is there already");
}

TEST_CASE("a full disk leaves no half of an imported checkpoint under its name") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  WriteHfFolder(dir.File("a"), config, TensorsOf(config));
  const auto weights = OpenWeights(dir.File("a"));
  REQUIRE_OK(weights.status());
  bool is_named_early = false;
  {
    const ScopedFileFault fault([&](FileOp op, const std::string&) {
      is_named_early |= IsDirectory(dir.File("b"));
      return op == FileOp::kWrite ? ENOSPC : 0;
    });
    CHECK_STATUS(ImportCheckpoint(*weights, dir.File("b")), absl::StatusCode::kResourceExhausted,
                 "No space left");
  }
  CHECK_FALSE(is_named_early);
  CHECK(ListDirectory(dir.path()).value() == std::vector<std::string>{"a"});
  // A folder that is there, and empty, is no obstacle.
  REQUIRE_OK(MakeDirectories(dir.File("b")));
  REQUIRE_OK(ImportCheckpoint(*weights, dir.File("b")));
  CHECK(ListDirectory(dir.path())->size() == 2);
}

TEST_CASE("a router's bias stays whole in a folder of bf16") {
  const TempDir dir;
  const std::string kBias = "model.layers.1.mlp.gate.e_score_correction_bias";
  for (const std::string name : {"glm4-moe-tiny", "deepseek-tiny"}) {
    INFO(name);
    ModelConfig config = Small(name);
    config.experts.shared_ffn_size = config.experts.ffn_size;
    FolderTensors tensors = TensorsOf(config);
    // As GLM 4.5's: far from zero, and close together. bf16 would make them all 6.90625.
    std::vector<float>& bias = tensors.at(kBias).values;
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = 6.9f + 0.001f * static_cast<float>(i);
    WriteHfFolder(dir.File(name), config, tensors);
    const auto weights = OpenWeights(dir.File(name));
    REQUIRE_OK(weights.status());
    for (const int64_t file_bytes : {int64_t{20000}, int64_t{1} << 30}) {
      const std::string output = dir.File(absl::StrCat(name, file_bytes));
      REQUIRE_OK(ExportHf(*weights,
                          {.output = output, .type = DType::kBFloat16, .file_bytes = file_bytes}));
      const auto exported = OpenWeights(output);
      REQUIRE_OK(exported.status());
      const auto differences = CompareWeights(*weights, *exported);
      REQUIRE_OK(differences.status());
      CHECK_FALSE(differences->empty());
      for (const auto& difference : *differences) CHECK(difference.name != kBias);
    }
  }
}

TEST_CASE("an export goes where a killed one was, and never where another is at work") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  WriteHfFolder(dir.File("a"), config, TensorsOf(config));
  const auto weights = OpenWeights(dir.File("a"));
  REQUIRE_OK(weights.status());
  const std::string partial = dir.File("b.partial");
  REQUIRE_OK(MakeDirectories(absl::StrCat(partial, "/whole/old")));
  {
    const auto other = OpenFile(partial + "/lock", O_RDWR | O_CREAT);
    REQUIRE_OK(other.status());
    REQUIRE(flock(other->get(), LOCK_EX | LOCK_NB) == 0);
    CHECK_STATUS(ExportHf(*weights, {.output = dir.File("b")}), absl::StatusCode::kAlreadyExists,
                 "b.partial");
    CHECK(IsDirectory(absl::StrCat(partial, "/whole/old")));
  }
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("b")}));
  CHECK(ListDirectory(dir.path()).value() == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(IsDirectory(dir.File("b/old")));
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("c/")}));  // as a shell completes a name
  CHECK(ListDirectory(dir.path()).value() == std::vector<std::string>{"a", "b", "c"});
  // A link to an empty folder is as good as the folder.
  REQUIRE_OK(MakeDirectories(dir.File("d")));
  REQUIRE(symlink("d", dir.File("link").c_str()) == 0);
  REQUIRE_OK(ExportHf(*weights, {.output = dir.File("link")}));
  CHECK(IsFile(dir.File("d/config.json")));
}

TEST_CASE("differences are named by tensor, the largest first; averages lie between") {
  const TempDir dir;
  const ModelConfig config = Small("llama-tiny");
  FolderTensors tensors = TensorsOf(config);
  WriteHfFolder(dir.File("a"), config, tensors);
  tensors["model.layers.1.mlp.down_proj.weight"].values[192 + 5] += 2;
  tensors["model.norm.weight"].values[9] -= 3;
  WriteHfFolder(dir.File("b"), config, tensors);
  const auto differences =
      CompareWeights(OpenWeights(dir.File("a")).value(), OpenWeights(dir.File("b")).value());
  REQUIRE_OK(differences.status());
  REQUIRE(differences->size() == 2);
  CHECK(differences->at(0).name == "model.norm.weight");
  CHECK(differences->at(0).largest == 3);
  CHECK(differences->at(0).column == 9);
  CHECK(differences->at(1).name == "model.layers.1.mlp.down_proj.weight");
  CHECK(differences->at(1).row == 1);
  CHECK(differences->at(1).column == 5);
  std::vector<Weights> all;
  all.push_back(OpenWeights(dir.File("a")).value());
  all.push_back(OpenWeights(dir.File("b")).value());
  const auto average = AverageWeights(std::move(all));
  REQUIRE_OK(average.status());
  const auto from_a = CompareWeights(OpenWeights(dir.File("a")).value(), *average).value();
  REQUIRE(from_a.size() == 2);
  CHECK(from_a.at(0).largest == 1.5);
  CHECK(from_a.at(1).largest == 1);
}

}  // namespace
}  // namespace convene::worker
