// A GGUF file as the weights of a model.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

// `path`: a GGUF file (gguf/gguf_file.h) of architecture llama, qwen2 or qwen3. Its weights come as
// fp32: blocks of small numbers are multiplied out. A read decodes no rows but those that it wants,
// a MiB at a time.
//
// Unimplemented: a part of a file that was cut into several, another architecture, a key that
// changes the arithmetic in a way that we lack, by its name. InvalidArgument: GgufFile::Parse's;
// tensors that are not the model's. Else as tools/base/files.h. All with the path.
absl::StatusOr<Weights> OpenGgufWeights(const std::string& path);

}  // namespace convene::worker
