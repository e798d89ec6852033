#include "worker_runtime/weights/open_weights.h"

#include <cerrno>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/model/shape_text.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;

TensorPiece Whole(const std::string& name, int64_t count) {
  return {.name = name,
          .global_shape = {1, count},
          .local_box = {{0, 0}, {1, count}},
          .flat_count = count};
}

void WriteCheckpoint(const std::string& directory, int64_t step, const std::string& model,
                     const std::vector<NamedFile>& tokenizer = {}) {
  const std::vector<float> weight(8, static_cast<float>(step));
  const std::vector<float> moment(8, 5);
  REQUIRE_OK(WriteShard(
      directory, step, 0,
      {{Whole("model.norm.weight", 8), absl::MakeConstSpan(weight)},
       {Whole("optimizer.first_moment/model.norm.weight", 8), absl::MakeConstSpan(moment)}}));
  REQUIRE_OK(PublishCheckpoint(directory, {.step = step, .seed = 9, .model = model, .data = "x"},
                               tokenizer));
}

TEST_CASE("a job's newest checkpoint gives its weights, and its shape") {
  const TempDir dir;
  const ModelConfig config = NamedModel("qwen3-moe-tiny").value();
  WriteCheckpoint(dir.path(), 2, ShapeText(config));
  WriteCheckpoint(dir.path(), 3, ShapeText(config));
  for (const std::string& path : {dir.path(), absl::StrCat(dir.path(), "/step_00000003")}) {
    const auto weights = OpenWeights(path);
    REQUIRE_OK(weights.status());
    CHECK(ShapeText(weights->config) == ShapeText(config));
    CHECK(weights->source->info() == CheckpointInfo{.model = ShapeText(config)});
    CHECK(weights->tokenizer->empty());
    std::vector<float> read(8);
    REQUIRE_OK(weights->source->Read({{Whole("model.norm.weight", 8), absl::MakeSpan(read)}}));
    CHECK(read == std::vector<float>(8, 3));
  }
}

TEST_CASE("a file that may not be read is no file of an unknown format") {
  const TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("text"), "Once upon a time"));
  CHECK_STATUS(OpenWeights(dir.File("text")), absl::StatusCode::kInvalidArgument,
               "it is no directory, no GGUF file and no model of llm.c");
  const ScopedFileFault fault(
      [](FileOp op, const std::string&) { return op == FileOp::kOpen ? EACCES : 0; });
  CHECK_STATUS(OpenWeights(dir.File("text")), absl::StatusCode::kPermissionDenied,
               "Permission denied");
}

TEST_CASE("a damaged file of the tokenizer leaves the weights in use, and says how to go on") {
  const TempDir dir;
  const std::string model = ShapeText(NamedModel("qwen3-moe-tiny").value());
  const std::vector<NamedFile> files = {{"tokenizer.json", "{}"}};
  WriteCheckpoint(dir.path(), 1, model, files);
  const std::string folder =
      absl::StrCat(dir.path(), "/step_00000001/", KeptDirectory(MarksOf(files)));
  CHECK(*OpenWeights(dir.path())->tokenizer == folder);
  REQUIRE_OK(RemoveTree(absl::StrCat(folder, "/tokenizer.json")));
  const auto weights = OpenWeights(dir.path());
  REQUIRE_OK(weights.status());
  CHECK_STATUS(weights->tokenizer, absl::StatusCode::kDataLoss,
               absl::StrCat(folder, "/tokenizer.json is missing: restore the file, or remove the ",
                            "folder ", folder, " and give --tokenizer"));
  REQUIRE_OK(RemoveTree(folder));
  CHECK(OpenWeights(dir.path())->tokenizer->empty());
}

TEST_CASE("what has no weights is refused, and said") {
  const TempDir dir;
  CHECK_STATUS(OpenWeights(absl::StrCat(dir.path(), "/none")), absl::StatusCode::kNotFound,
               "weights: there is nothing at ");
  CHECK_STATUS(OpenWeights("openai/gpt2"), absl::StatusCode::kNotFound,
               "`hf download NAME --local-dir FOLDER` fetches it");
  CHECK_STATUS(OpenWeights(dir.path()), absl::StatusCode::kNotFound,
               "has no weights; give a folder with config.json");
  REQUIRE_OK(MakeDirectories(dir.File("dcp")));
  REQUIRE_OK(WriteFileAtomic(dir.File("dcp/.metadata"), "a pickle"));
  CHECK_STATUS(OpenWeights(dir.File("dcp")), absl::StatusCode::kInvalidArgument,
               "torch.distributed.checkpoint (DCP)");
  WriteCheckpoint(dir.path(), 1, "another program's text");
  CHECK_STATUS(OpenWeights(dir.path()), absl::StatusCode::kInvalidArgument,
               "is no shape of a model that this program knows");
}

}  // namespace
}  // namespace convene::worker
