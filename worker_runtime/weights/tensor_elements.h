// Elements of a matrix as a file of weights holds them: their types, and their way into a piece.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {

// kMxfp4: 32 elements of 4 bits (E2M1), the even one of two in the low half of a byte, and for each
// 32 a power of two in a byte of its own (OCP Microscaling Formats 1.0, section 5.3).
enum class StoredType { kF32, kF16, kBF16, kMxfp4 };

// By safetensors' name of it. False: we lack it, or it needs more than one of them.
bool StoredTypeNamed(absl::string_view name, StoredType* type);

// Element (row, column) is number first + row * row_step + column * column_step of those at `data`,
// which need not be aligned.
struct StoredMatrix {
  const char* data = nullptr;
  StoredType type = StoredType::kF32;
  int64_t first = 0;
  int64_t row_step = 0;
  int64_t column_step = 1;
  const char* scales = nullptr;  // kMxfp4's: 2^(byte - 127) for elements [32 i, 32 i + 32)
};

// Copies elements [flat_begin, flat_begin + target.count) of the row-major flattening of `box`, in
// fp32 or bf16; fp32 and fp16 are rounded to the nearest bf16, ties to even. Returns the bytes of
// the file from the first that it read to the last. REQUIRES: the box lies inside the matrix, and
// the elements inside the box; it has two axes.
absl::string_view CopyElements(const StoredMatrix& matrix, const Box& box, int64_t flat_begin,
                               const Elements& target);

}  // namespace convene::worker
