#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/peft_config.h"
#include "worker_runtime/weights/tokenizer_files.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::worker {
namespace {

// PEFT 0.21 turns each target that ends like an expert's matrix into one of the experts' fused
// tensors (utils/transformers_weight_conversion.py).
absl::Status RefuseNamesOfExperts(const Adapter& adapter, const ModelConfig& model) {
  if (model.experts.count == 0) return absl::OkStatus();
  const TensorNames& names = model.family->names;
  const std::string experts[] = {names.expert_gate, names.expert_up, names.expert_down};
  for (const std::string& end : MatrixEnds(adapter)) {
    const std::string last = end.substr(end.rfind('.') + 1);
    if (!absl::c_linear_search(experts, last)) continue;
    return absl::UnimplementedError(absl::StrCat(
        "PEFT takes adapters on ", end,
        " for adapters of the experts, whose matrices have that "
        "name too; export the whole model (--format hf), or train with --lora-targets that leave ",
        last, " out"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportPeft(const Adapter& adapter, const ModelConfig& model,
                        const std::string& output) {
  CONVENE_RETURN_IF_ERROR(CheckAdapterFits(adapter, model));
  CONVENE_RETURN_IF_ERROR(RefuseNamesOfExperts(adapter, model));
  std::vector<ModelTensor> tensors = AdapterTensors(model);
  for (ModelTensor& tensor : tensors) tensor.file.name.insert(0, kPeftPrefix);
  const std::string config = WritePeftConfig({adapter.config, adapter.base}, MatrixEnds(adapter),
                                             model.family->keys.turned_matrices);
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
