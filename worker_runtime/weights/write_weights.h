// Writes weights for other programs, and for ours. Both stream: memory is some hundred MiB,
// whatever the model's size. The output appears under its name when all of it is on the disk.
//
// Errors of both: those of weights.source, and of tools/base/files.h; AlreadyExists: the output is
// there already.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

struct NamedFile {
  std::string name;
  std::string content;
};

struct HfExport {
  std::string output;
  DType type = DType::kFloat32;        // or kBFloat16: rounded to nearest, ties to even
  int64_t file_bytes = 5'000'000'000;  // the most tensors of a file, but at least one
  HfConfigExtras extras;               // its type is this one's
  std::vector<NamedFile> other_files;  // that come into it as well
};

// A folder that transformers loads: config.json, and model.safetensors or several files with their
// index. Unimplemented: WriteHfConfig's.
absl::Status ExportHf(const Weights& weights, HfExport wanted);

// A checkpoint of step 0 in directory `output`, of weights alone in fp32: to begin with, to look
// at, not to resume from.
absl::Status ImportCheckpoint(const Weights& weights, const std::string& output);

}  // namespace convene::worker
