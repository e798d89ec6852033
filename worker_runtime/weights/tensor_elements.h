// Elements of a matrix as a file of weights holds them: their types, and their way into a piece.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {

enum class StoredType { kF32, kF16, kBF16 };

// By safetensors' name of it. False: we lack it.
bool StoredTypeNamed(absl::string_view name, StoredType* type);

// Row-major at `data`, which need not be aligned. Turned: the model's element (row, column) is the
// file's (column, row).
struct StoredMatrix {
  const char* data = nullptr;
  int64_t columns = 0;  // of the file
  StoredType type = StoredType::kF32;
  bool is_turned = false;
};

// Copies elements [flat_begin, flat_begin + target.count) of the row-major flattening of `box`, in
// fp32 or bf16; fp32 and fp16 are rounded to the nearest bf16, ties to even. Returns the bytes of
// the file from the first that it read to the last. REQUIRES: the box lies inside the matrix, and
// the elements inside the box; it has two axes.
absl::string_view CopyElements(const StoredMatrix& matrix, const Box& box, int64_t flat_begin,
                               const Elements& target);

}  // namespace convene::worker
