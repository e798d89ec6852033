#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/peft_config.h"
#include "worker_runtime/weights/tokenizer_files.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::worker {
namespace {

constexpr absl::string_view kExperts = ".experts.*.";

// With transformers 5, PEFT 0.21 turns each target that ends like an expert's matrix into one of
// the experts' fused tensors (utils/transformers_weight_conversion.py), of which one has gate and
// up. It has no such form of gpt-oss, whose files are fused already.
absl::Status RefuseWhatPeftTakesOtherwise(const Adapter& adapter, const ModelConfig& model) {
  if (model.experts.count == 0) return absl::OkStatus();
  const TensorNames& names = model.family->names;
  const std::string experts[] = {names.expert_gate, names.expert_up, names.expert_down};
  const std::vector<std::string> ends = MatrixEnds(adapter);
  const auto refuse = [](const auto&... what) {
    return absl::UnimplementedError(absl::StrCat(
        what..., "; export the whole model (--format hf), or train with other --lora-targets"));
  };
  for (const std::string& end : ends) {
    const std::string last = end.substr(end.rfind('.') + 1);
    if (!absl::c_linear_search(experts, last)) continue;
    if (!absl::StrContains(end, kExperts)) {
      return refuse("PEFT takes adapters on ", end,
                    " for adapters of the experts, whose matrices have that name too");
    }
    if (model.family->keys.gate_up != nullptr) {
      return refuse("PEFT has no adapters of single experts of ", model.family->name);
    }
    const std::string& other = last == experts[0] ? experts[1] : experts[0];
    const std::string its_end = absl::StrCat(names.experts, ".*.", other);
    if (last == experts[2] || absl::c_linear_search(ends, its_end)) continue;
    return refuse("PEFT has adapters on ", end, " only beside such on ", its_end);
  }
  return absl::OkStatus();
}

// Where PEFT fuses adapters it knows no dropout, and scales rank-stabilized ones by the rank of all
// that it fuses: so these go out as plain ones of the same scale.
AdapterConfig PeftForm(AdapterConfig config, const std::vector<std::string>& ends) {
  const auto is_of_experts = [](const std::string& end) {
    return absl::StrContains(end, kExperts);
  };
  if (absl::c_none_of(ends, is_of_experts)) return config;
  config.dropout = 0;
  if (config.rank_stabilized) config.alpha = config.scale() * config.rank;
  config.rank_stabilized = false;
  return config;
}

// As PEFT's target_modules have them, each expert by its number.
std::vector<std::string> PeftTargets(const Adapter& adapter, const ModelConfig& model) {
  std::vector<std::string> targets;
  for (const std::string& end : MatrixEnds(adapter)) {
    const int experts = absl::StrContains(end, kExperts) ? model.experts.count : 1;
    for (int expert = 0; expert < experts; ++expert) {
      targets.push_back(absl::StrReplaceAll(end, {{"*", absl::StrCat(expert)}}));
    }
  }
  return targets;
}

}  // namespace

absl::Status ExportPeft(const Adapter& adapter, const ModelConfig& model,
                        const std::string& output) {
  CONVENE_RETURN_IF_ERROR(CheckAdapterFits(adapter, model));
  CONVENE_RETURN_IF_ERROR(RefuseWhatPeftTakesOtherwise(adapter, model));
  std::vector<ModelTensor> tensors = AdapterTensors(model);
  for (ModelTensor& tensor : tensors) tensor.file.name.insert(0, kPeftPrefix);
  const std::string config =
      WritePeftConfig({PeftForm(adapter.config, MatrixEnds(adapter)), adapter.base},
                      PeftTargets(adapter, model), model.family->keys.turned_matrices);
  CONVENE_ASSIGN_OR_RETURN(const std::string tokenizer, adapter.tokenizer);
  CONVENE_ASSIGN_OR_RETURN(const std::vector<NamedFile> tokenizer_files,
                           TokenizerFilesForOthers(tokenizer));
  return MakeWhole(output, MadeAs::kFolder, [&](const std::string& folder) -> absl::Status {
    CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
    CONVENE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(folder, "/", kPeftConfigName), config));
    for (const NamedFile& file : tokenizer_files) {
      CONVENE_RETURN_IF_ERROR(WriteNamedFile(folder, file));
    }
    return WriteTensorFile(*adapter.source, tensors, DType::kFloat32,
                           absl::StrCat(folder, "/", kPeftWeightsName));
  });
}

}  // namespace convene::worker
