// Files in memory as a source of weights.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/weights/tensor_elements.h"

namespace convene::worker {

// One of the model's tensors, and where its elements lie.
struct HeldTensor {
  std::array<int64_t, 2> shape;  // ParameterSlice::global_shape
  StoredMatrix matrix;           // in one of the files
};
using HeldTensors = absl::flat_hash_map<std::string, HeldTensor>;

// A source of `tensors`, all inside `files`, which must not be cut while it lives. Pages that were
// read are let go, so that the process holds its own slices and not the files. Its errors name
// `path`. Read: FailedPrecondition, a tensor that is not there, or of another shape.
std::unique_ptr<StateSource> MapWeights(std::string path, const ModelConfig& config,
                                        std::vector<MappedFile> files, HeldTensors tensors);

}  // namespace convene::worker
