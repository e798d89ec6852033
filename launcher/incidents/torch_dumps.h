// The words of PyTorch's flight recorder about a failure: dumps that torch's own torchfrtrace
// reads.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::launcher {

// The lines that torchfrtrace prints about the dumps PREFIX<rank> of all ranks, `prefix` being what
// TORCH_FR_DUMP_TEMP_FILE was; at most 200 lines. Waits at most a minute for its next word. Errors:
// NotFound, no dump begins so, or torchfrtrace is not in PATH; OpenCommand's.
absl::StatusOr<std::vector<std::string>> ReadTorchDumps(const std::string& prefix);

}  // namespace convene::launcher
