// PURE. The element types of GGUF files: blocks of numbers under one scale.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

struct BlockType {
  uint32_t number;  // ggml_type
  const char* name;
  int elements;  // of a block; a row is a whole number of blocks
  int bytes;     // of a block
  void (*decode)(const char* block, float* elements);
};

// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K. Unimplemented for others, with
// the name of a type that ggml has.
absl::StatusOr<const BlockType*> FindBlockType(uint32_t number);

// The elements of `bytes`, which are a whole number of blocks. Exact: each is ggml's own value.
void DecodeBlocks(const BlockType& type, absl::string_view bytes, float* elements);

}  // namespace convene::worker
