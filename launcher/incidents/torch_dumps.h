// PyTorch's flight recorder tells about a failure, by the dumps that it left.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::launcher {

struct TorchReading {
  std::vector<std::string> lines;
  bool is_read = false;  // by one of both readers at least
};

// The collectives that some ranks did not start, by the dumps PREFIX<rank> of all ranks, `prefix`
// being what TORCH_FR_DUMP_TEMP_FILE was: read here, with python3's own library, and by
// torchfrtrace where it is installed. At most 200 lines of each, each line once; of a reader that
// fails one line says why. Waits at most a minute for a reader's next word. NotFound: no dump
// begins so.
absl::StatusOr<TorchReading> ReadTorchDumps(const std::string& prefix);

}  // namespace convene::launcher
