// The model's shape out of the proto.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/train_config.pb.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// The named model, or that of a folder or a GGUF file, with the changes of `shape`: a key that
// `shape` does not have keeps the named model's value. InvalidArgument: an unknown name, a number
// out of bounds, a key that the model's family does not have, a scaling of rotary positions that
// the family's files cannot tell. Where one theta is for all layers, windows follow rope_theta.
// Errors else: FindShape's.
absl::StatusOr<ModelConfig> ResolveModel(const std::string& name, const ModelShape& shape);

}  // namespace convene::worker
