// PURE. The variables that a launch hands to every host: a remote shell knows nothing of the
// environment in which `convene launch` was called.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::launcher {

using Variables = std::map<std::string, std::string>;

// The text of a .deepspeed_env and its path, for errors.
struct VariableFile {
  std::string path;
  std::string text;
};

// Three sources; a later one wins. First the variables of `own`, the environment here, whose names
// begin with NCCL_, CUDA_, PYTHON, CONVENE_, MV2_, UCX_ or MLFLOW_, but for the variables that are
// about this machine or this process (CUDA_VISIBLE_DEVICES, CONVENE_TOPOLOGY, a worker's own). Then
// the lines NAME=VALUE of `files`. Then `exports`, each NAME (its value here) or NAME=VALUE.
// InvalidArgument for a name that is none, a line that is not understood (with its number) and an
// export that is not set here.
absl::StatusOr<Variables> ExportedVariables(const Variables& own,
                                            const std::vector<VariableFile>& files,
                                            const std::vector<std::string>& exports);

}  // namespace convene::launcher
