#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/peft_config.h"
#include "worker_runtime/weights/write_weights.h"

namespace convene::worker {

absl::Status ExportPeft(const Adapter& adapter, const ModelConfig& model,
                        const std::string& output) {
  CONVENE_RETURN_IF_ERROR(CheckAdapterFits(adapter, model));
  std::vector<ModelTensor> tensors = AdapterTensors(model);
  for (ModelTensor& tensor : tensors) tensor.file.name.insert(0, kPeftPrefix);
  // In a model with experts the last word of a name may be an expert's too.
  const std::vector<std::string> targets =
      model.experts.count > 0 ? MatrixNames(adapter) : MatrixEnds(adapter);
  const std::string config =
      WritePeftConfig({adapter.config, adapter.base}, targets, model.family->keys.turned_matrices);
  return MakeWhole(output, [&](const std::string& folder) -> absl::Status {
    CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
    CONVENE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(folder, "/", kPeftConfigName), config));
    return WriteTensorFile(*adapter.source, tensors, DType::kFloat32,
                           absl::StrCat(folder, "/", kPeftWeightsName));
  });
}

}  // namespace convene::worker
