#include "worker_runtime/weights/open_weights.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/gguf/gguf_tokenizer.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/gguf_weights.h"
#include "worker_runtime/weights/hf_folder.h"
#include "worker_runtime/weights/llmc_model.h"
#include "worker_runtime/weights/merged_weights.h"
#include "worker_runtime/weights/open_checkpoint.h"

namespace convene::worker {
namespace {

// Adapters that lie at `path`, added to the weights beside which they were trained.
absl::StatusOr<Weights> OpenMerged(const std::string& path, Adapter adapter) {
  const std::string base = adapter.base;
  if (base.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " holds adapters, and does not say of which model"));
  }
  absl::StatusOr<Weights> weights =
      IsPeftFolder(base) ? absl::InvalidArgumentError("these are adapters too") : OpenWeights(base);
  if (!weights.ok()) {
    return absl::Status(
        weights.status().code(),
        absl::StrCat(path, " holds adapters of the weights ", base, ", which cannot be opened: ",
                     weights.status().message(), "; put them there (a link will do)",
                     IsPeftFolder(path) ? ", or say in adapter_config.json where they are" : ""));
  }
  CONVENE_ASSIGN_OR_RETURN(Weights merged, MergeAdapter(*std::move(weights), std::move(adapter)));
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(path);
  if (names.ok() && HasTokenizer(*names)) merged.tokenizer = path;
  return merged;
}

absl::StatusOr<Weights> OpenCheckpointWeights(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(path));
  if (opened.config.adapter.is_on()) {
    CONVENE_ASSIGN_OR_RETURN(Adapter adapter, OpenAdapter(path));
    return OpenMerged(path, std::move(adapter));
  }
  return Weights{.config = std::move(opened.config), .source = std::move(opened.source)};
}

}  // namespace

absl::StatusOr<Weights> OpenWeights(const std::string& path) {
  if (IsGgufFile(path)) return OpenGgufWeights(path);
  if (IsLlmcModel(path)) return OpenLlmcModel(path);
  if (!IsDirectory(path)) {
    return absl::NotFoundError(
        absl::StrCat("weights ", path, ": it is no directory, no GGUF file and no model of llm.c"));
  }
  if (IsPeftFolder(path)) {
    CONVENE_ASSIGN_OR_RETURN(Adapter adapter, OpenAdapter(path));
    return OpenMerged(path, std::move(adapter));
  }
  if (IsFile(absl::StrCat(path, "/", kHfConfigName))) return OpenHfFolder(path);
  return OpenCheckpointWeights(path);
}

absl::StatusOr<ModelConfig> ReadShape(const std::string& path) {
  if (IsFile(absl::StrCat(path, "/", kHfConfigName))) return ReadHfShape(path);
  CONVENE_ASSIGN_OR_RETURN(const Weights weights, OpenWeights(path));
  return weights.config;
}

}  // namespace convene::worker
