// PURE. The header of a safetensors file: eight bytes with the length of a JSON text, this text,
// and behind it the tensors' bytes (github.com/huggingface/safetensors, "Format").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

struct SafeTensor {
  std::string name;
  std::string type;            // "F32", "BF16", ..., as the file has it
  std::vector<int64_t> shape;  // row-major; may be empty
  int64_t begin = 0;           // of its bytes, behind the header
  int64_t end = 0;
  friend bool operator==(const SafeTensor&, const SafeTensor&) = default;
};

inline constexpr int64_t kSafeTensorsLengthBytes = 8;
// The library's own limit.
inline constexpr int64_t kSafeTensorsHeaderMax = 100'000'000;

// The length of the text, of the file's first eight bytes. InvalidArgument: `bytes` is shorter, or
// the length is more than kSafeTensorsHeaderMax or than `file_bytes` has room for.
absl::StatusOr<int64_t> SafeTensorsHeaderLength(absl::string_view bytes, int64_t file_bytes);

// The tensors that the text names, by their place, of which `data_bytes` are behind it.
// InvalidArgument, with the tensor: no such text, an unknown type, a shape whose size is not that
// of its bytes, a name twice, bytes that belong to two tensors or to none.
absl::StatusOr<std::vector<SafeTensor>> ParseSafeTensorsHeader(absl::string_view text,
                                                               int64_t data_bytes);

// The eight bytes and the text, padded with spaces to a multiple of eight, for tensors whose bytes
// follow in this order. `begin` and `end` are set.
std::string MakeSafeTensorsHeader(std::vector<SafeTensor>* tensors);

}  // namespace convene::worker
