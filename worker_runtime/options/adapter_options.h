// PURE. The meaning of adapters for a run's other settings.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

// Whether the model, with its adapters, makes sense, can be split so, and can be trained with the
// run's optimizer. InvalidArgument: ValidateModel's and ValidateAdapters's, muon with adapters.
absl::Status ValidateTrainedModel(const TrainOptions& options, const Layout& layout);

// "; LoRA of rank 8 and alpha 16 on q_proj, v_proj: 1,024 parameters learn"; "" without adapters.
std::string DescribeAdapters(const ModelConfig& model);

}  // namespace convene::worker
