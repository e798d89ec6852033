#include "worker_runtime/weights/open_weights.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/gguf/gguf_tokenizer.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/gguf_weights.h"
#include "worker_runtime/weights/hf_folder.h"
#include "worker_runtime/weights/llmc_model.h"
#include "worker_runtime/weights/merged_weights.h"
#include "worker_runtime/weights/open_checkpoint.h"

namespace convene::worker {
namespace {

// Adapters that lie at `path`, added to the weights beside which they were trained; `moved` (not
// "") is where these lie now.
absl::StatusOr<Weights> OpenMerged(const std::string& path, Adapter adapter,
                                   const std::string& moved) {
  const std::string base = moved.empty() ? adapter.base : moved;
  if (base.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " holds adapters, and does not say of which model: name it with --base"));
  }
  absl::StatusOr<Weights> weights =
      IsPeftFolder(base) ? absl::InvalidArgumentError("these are adapters too") : OpenWeights(base);
  if (!weights.ok()) {
    return absl::Status(
        weights.status().code(),
        absl::StrCat(path, " holds adapters of the weights ", base,
                     ", which cannot be opened: ", weights.status().message(),
                     "; say where they are with --base (of convene generate, convene evaluate "
                     "and convene checkpoint export), or put a link there"));
  }
  const absl::StatusOr<std::string> tokenizer = adapter.tokenizer;
  CONVENE_ASSIGN_OR_RETURN(Weights merged, MergeAdapter(*std::move(weights), std::move(adapter)));
  if (!tokenizer.ok() || !tokenizer->empty()) merged.tokenizer = tokenizer;
  return merged;
}

absl::Status NothingAt(const std::string& path) {
  const bool may_be_name = path[0] != '/' && path[0] != '.';
  return absl::NotFoundError(absl::StrCat(
      "weights: there is nothing at ", path,
      may_be_name ? ": give the path of a model's folder, of a GGUF file or of a checkpoint. A "
                    "model's name is not looked up on the Hub: `hf download NAME --local-dir "
                    "FOLDER` fetches it"
                  : ""));
}

// Weights of all kinds but PEFT's folders.
absl::StatusOr<Weights> OpenAny(const std::string& path) {
  if (IsGgufFile(path)) return OpenGgufWeights(path);
  if (IsLlmcModel(path)) return OpenLlmcModel(path);
  if (!IsDirectory(path)) {
    // A file that may not be read has no format either. A pipe without a writer would block.
    const absl::Status opened = OpenFile(path, O_RDONLY | O_NONBLOCK).status();
    if (absl::IsNotFound(opened)) return NothingAt(path);
    CONVENE_RETURN_IF_ERROR(Annotate(opened, "weights"));
    return absl::InvalidArgumentError(
        absl::StrCat("weights ", path, ": it is no directory, no GGUF file and no model of llm.c"));
  }
  if (IsFile(absl::StrCat(path, "/", kHfConfigName))) return OpenHfFolder(path);
  if (IsFile(path + "/.metadata")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weights ", path, ": it is a checkpoint of torch.distributed.checkpoint (DCP), which is ",
        "not read here: load it in the program that made it, and let save_pretrained() write a ",
        "Hugging Face folder"));
  }
  CONVENE_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OpenCheckpoint(path));
  return Weights{.config = std::move(opened.config),
                 .source = std::move(opened.source),
                 .tokenizer = std::move(opened.tokenizer),
                 .longest_text = opened.longest_text};
}

}  // namespace

absl::StatusOr<Weights> OpenWeights(const std::string& path, const std::string& base) {
  bool is_adapter = IsPeftFolder(path);
  int longest_text = 0;  // of the run that trained adapters
  if (!is_adapter) {
    CONVENE_ASSIGN_OR_RETURN(Weights weights, OpenAny(path));
    is_adapter = weights.config.adapter.is_on();
    longest_text = weights.longest_text;
    if (!is_adapter && base.empty()) return weights;
  }
  if (!is_adapter) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " holds a whole model, and no adapters beside a base: leave --base out"));
  }
  CONVENE_ASSIGN_OR_RETURN(Adapter adapter, OpenAdapter(path));
  CONVENE_ASSIGN_OR_RETURN(Weights merged, OpenMerged(path, std::move(adapter), base));
  merged.longest_text = std::max(merged.longest_text, longest_text);
  return merged;
}

absl::StatusOr<std::optional<int64_t>> NewestStep(const std::string& path) {
  if (!IsDirectory(path) || IsPeftFolder(path) || IsFile(absl::StrCat(path, "/", kHfConfigName))) {
    return std::nullopt;
  }
  CONVENE_ASSIGN_OR_RETURN(const OpenedCheckpoint opened, OpenCheckpoint(path));
  return StepIn(path, opened.source->name());
}

absl::StatusOr<ModelConfig> ReadShape(const std::string& path) {
  if (IsFile(absl::StrCat(path, "/", kHfConfigName))) return ReadHfShape(path);
  CONVENE_ASSIGN_OR_RETURN(const Weights weights, OpenWeights(path));
  return weights.config;
}

absl::StatusOr<ModelConfig> FindShape(const std::string& model) {
  if (IsDirectory(model) || IsGgufFile(model)) return ReadShape(model);
  if (!absl::StrContains(model, "/")) return NamedModel(model);
  return absl::NotFoundError(absl::StrCat(
      "model: there is no folder and no GGUF file ", model,
      ". A model's name is not looked up on the Hub: `hf download NAME config.json --local-dir "
      "FOLDER` fetches its shape; then give FOLDER, or a shape's name, such as llama-tiny"));
}

}  // namespace convene::worker
