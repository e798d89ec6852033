#include "worker_runtime/inference/open_model.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/inference/prompts.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::worker {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const ModelFlags& flags,
                                                         const std::string& path,
                                                         const Weights& weights) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.model,
                     " has no tokenizer: name the one that the model was trained "
                     "with (--tokenizer PATH, or --tokenizer byte)"));
  }
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  const int words = weights.config.vocabulary_size;
  const int needed = tokenizer->document_vocabulary_size();
  if (needed <= words) return tokenizer;
  return absl::InvalidArgumentError(
      absl::StrCat("the tokenizer ", path, " has ", needed, " tokens, and the model ", flags.model,
                   " knows ", words, ": they do not belong together (--tokenizer)"));
}

}  // namespace

int ContextOfTyped(const ModelFlags& flags, const OpenedModel& opened) {
  constexpr int kTypedContext = 4096;
  if (flags.context > 0) return flags.context;
  int context = kTypedContext;
  for (const int most : {opened.weights.config.positions, opened.longest_text}) {
    if (most > 0) context = std::min(context, most);
  }
  return context;
}

absl::StatusOr<OpenedModel> OpenModel(const ModelFlags& flags, bool needs_tokenizer) {
  OpenedModel model;
  CONVENE_ASSIGN_OR_RETURN(model.ranks, Ranks::Join({.pp = flags.pp_size, .tp = flags.tp_size}));
  CONVENE_ASSIGN_OR_RETURN(model.weights, OpenWeights(flags.model, flags.base));
  model.tokenizer_path = flags.tokenizer;
  if (flags.tokenizer.empty()) {
    CONVENE_ASSIGN_OR_RETURN(model.tokenizer_path, model.weights.tokenizer);
  }
  if (needs_tokenizer || !model.tokenizer_path.empty()) {
    CONVENE_ASSIGN_OR_RETURN(model.tokenizer,
                             OpenTokenizer(flags, model.tokenizer_path, model.weights));
  }
  // A checkpoint has the folder's word with its tokenizer.
  for (const std::string& folder :
       {flags.model, flags.tokenizer.empty() ? model.tokenizer_path : std::string()}) {
    if (!model.end_tokens.empty() || !IsDirectory(folder)) continue;
    CONVENE_ASSIGN_OR_RETURN(model.end_tokens, EndTokensOf(folder));
  }
  model.longest_text = model.weights.longest_text;
  const RopeScaling& scaling = model.weights.config.rope_scaling;
  if (model.longest_text > 0 && scaling.factor > 1) {  // some configs tell it without the scaling
    model.longest_text =
        std::max(model.longest_text, static_cast<int>(scaling.factor * scaling.original_positions));
  }
  if (model.end_tokens.empty() && model.tokenizer != nullptr) {
    model.end_tokens = EndTokensOf(*model.tokenizer);
  }
  CONVENE_ASSIGN_OR_RETURN(model.device, model.ranks->OpenDevice(flags.device));
  const bool is_gpu = model.device->kind() == DeviceKind::kCuda;
  const bool is_bf16 = flags.precision == "auto" ? is_gpu : flags.precision == "bf16";
  model.dtype = is_bf16 ? DType::kBFloat16 : DType::kFloat32;
  CONVENE_ASSIGN_OR_RETURN(model.communicators, model.ranks->Connect(*model.device));
  return model;
}

absl::StatusOr<std::unique_ptr<LanguageModel>> OpenedModel::Load(int sequences, int context) {
  if (longest_text > 0 && context > longest_text && ranks->speaks()) {
    std::fprintf(
        stderr,
        "convene: the model was made for texts of %d tokens, as its files say, and these may have "
        "%d with their answers: what it says beyond that may make no sense\n",
        longest_text, context);
  }
  return LanguageModel::Make({.config = weights.config,
                              .layout = ranks->layout(),
                              .dtype = dtype,
                              .sequences = sequences,
                              .context = context},
                             *weights.source, communicators, *device);
}

}  // namespace convene::worker
