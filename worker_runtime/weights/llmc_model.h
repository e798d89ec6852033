// A model of llm.c: GPT-2 in one file (llm.c's train_gpt2.py, write_model).
//
// 256 numbers of 32 bits: magic, version (3: fp32, 5: bf16), positions, vocabulary, layers, heads,
// hidden size, rows of the table of tokens (the vocabulary, filled up). Behind them the tensors,
// each of all layers one after another; matrices are [out, in].
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

inline constexpr int32_t kLlmcModelMagic = 20240326;
inline constexpr int32_t kLlmcFloat32 = 3;
inline constexpr int32_t kLlmcBFloat16 = 5;
using LlmcHeader = std::array<int32_t, 256>;

struct LlmcShape {
  ModelConfig config;
  int64_t table_rows = 0;
};

// InvalidArgument: the numbers behind the version make no sense.
absl::StatusOr<LlmcShape> ReadLlmcHeader(const LlmcHeader& header);

// A tensor, and its place in the file, in elements behind the header.
struct LlmcPlace {
  ModelTensor tensor;
  int64_t begin = 0;
};

// In the file's order; *elements: of the whole file.
std::vector<LlmcPlace> LlmcPlaces(const LlmcShape& shape, int64_t* elements);

// Whether `path` is a file that begins as such a model does.
bool IsLlmcModel(const std::string& path);

// The file must not be cut while the source lives. InvalidArgument, with the path: another version,
// a shape that makes no sense, a size that is not that of the shape. Else as tools/base/files.h.
absl::StatusOr<Weights> OpenLlmcModel(const std::string& path);

}  // namespace convene::worker
