#include "worker_runtime/weights/open_checkpoint.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/shape_text.h"

namespace convene::worker {
namespace {

class CheckpointWeights final : public StateSource {
 public:
  explicit CheckpointWeights(CheckpointReader reader)
      : reader_(std::move(reader)), info_({.model = reader_.info().model}) {}

  const std::string& name() const override { return reader_.name(); }
  const CheckpointInfo& info() const override { return info_; }
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override {
    return reader_.Read(pieces);
  }

 private:
  const CheckpointReader reader_;
  const CheckpointInfo info_;
};

absl::StatusOr<CheckpointReader> OpenReader(const std::string& path) {
  if (IsFile(absl::StrCat(path, "/", kManifestName))) return CheckpointReader::Open(path);
  std::vector<std::string> refused;
  absl::StatusOr<CheckpointReader> newest =
      OpenNewest(path, std::numeric_limits<int64_t>::max(), &refused);
  if (!absl::IsNotFound(newest.status())) return newest;
  if (!refused.empty()) return absl::DataLossError(refused.front());
  return absl::NotFoundError(absl::StrCat(
      path,
      " has no weights; give a folder with config.json and *.safetensors, a checkpoint (a "
      "directory step_...), or the --checkpoint-dir of a job"));
}

}  // namespace

absl::StatusOr<OpenedCheckpoint> OpenCheckpoint(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(CheckpointReader reader, OpenReader(path));
  absl::StatusOr<ModelConfig> config = ParseShapeText(reader.info().model);
  const absl::Status valid = config.ok() ? ValidateModel(*config, Layout()) : config.status();
  if (!valid.ok()) return Annotate(valid, reader.name());
  absl::StatusOr<std::string> tokenizer = reader.TokenizerFolder();
  if (!tokenizer.ok()) {
    tokenizer = absl::Status(
        tokenizer.status().code(),
        absl::StrCat(tokenizer.status().message(), ": restore the file, or remove the folder ",
                     reader.name(), "/", KeptDirectory(reader.tokenizer_files()),
                     " and give --tokenizer"));
  }
  if (reader.info().tokenizer.path == "byte") tokenizer = "byte";
  const std::string base = reader.info().base;
  const int longest_text = reader.info().longest_text;
  return OpenedCheckpoint{.config = *std::move(config),
                          .base = base,
                          .tokenizer = std::move(tokenizer),
                          .longest_text = longest_text,
                          .source = std::make_unique<CheckpointWeights>(std::move(reader))};
}

}  // namespace convene::worker
