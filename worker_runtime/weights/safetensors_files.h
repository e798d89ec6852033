// The tensors of mapped safetensors files, by their names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/data/store/mapped_file.h"
#include "worker_runtime/weights/model_tensors.h"
#include "worker_runtime/weights/safetensors.h"
#include "worker_runtime/weights/tensor_elements.h"

namespace convene::worker {

// A tensor, and where it lies. Borrows the file.
struct TensorPlace {
  SafeTensor tensor;
  const MappedFile* file = nullptr;
  const char* data = nullptr;
};
using TensorPlaces = absl::flat_hash_map<std::string, TensorPlace>;

// Adds the file's tensors. InvalidArgument, with the file: safetensors.h's, and a name that is
// there already.
absl::Status AddTensors(const MappedFile& file, TensorPlaces* places);

// InvalidArgument, with file and tensor: another shape than config.json says. A vector may have an
// axis of one row before it.
absl::Status CheckShape(const TensorPlace& place, const std::vector<int64_t>& wanted);

// CheckShape, and where the wanted elements lie. Unimplemented: a type that we lack.
absl::StatusOr<StoredMatrix> Fit(const TensorPlace& place, const FilePlace& wanted);

}  // namespace convene::worker
