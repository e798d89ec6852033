// PURE. Reads the frame of a GGUF file, versions 2 and 3: its facts and where its tensors lie.
// Source: ggml's docs/gguf.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/gguf/block_type.h"

namespace convene::worker {

// Texts are views of the file.
using GgufValue = std::variant<int64_t, double, bool, absl::string_view, std::vector<int64_t>,
                               std::vector<double>, std::vector<absl::string_view>>;

struct GgufTensor {
  absl::string_view name;      // "blk.0.attn_q.weight"
  std::vector<int64_t> shape;  // row-major, 1 to 4 axes: the last one's elements are neighbours
  const BlockType* type = nullptr;
  absl::string_view bytes;
};

// A view of the file's bytes, which outlive it. Read-only and thread-safe.
class GgufFile {
 public:
  // InvalidArgument: no GGUF file, a cut one, or one that contradicts itself (tensors that overlap
  // or reach beyond the end, names or keys twice, sizes that overflow). Unimplemented, by its name:
  // an element type that FindBlockType lacks, another version, arrays of arrays.
  static absl::StatusOr<GgufFile> Parse(absl::string_view bytes);

  // Whether a file that begins so means to be one.
  static bool LooksLikeOne(absl::string_view start);

  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  bool Has(absl::string_view key) const { return facts_.contains(key); }
  // The fact of this key. NotFound: there is none. InvalidArgument: it is of another kind, or no
  // number from 0 to 2^31. Both name the key. Real() takes whole numbers too.
  absl::StatusOr<int> Count(absl::string_view key) const;
  absl::StatusOr<double> Real(absl::string_view key) const;
  absl::StatusOr<bool> Bool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> Text(absl::string_view key) const;
  absl::StatusOr<const std::vector<absl::string_view>*> Texts(absl::string_view key) const;
  absl::StatusOr<const std::vector<int64_t>*> Numbers(absl::string_view key) const;
  absl::StatusOr<const std::vector<double>*> Reals(absl::string_view key) const;

 private:
  template <typename T>
  absl::StatusOr<const T*> Get(absl::string_view key, const char* kind) const;

  std::map<absl::string_view, GgufValue> facts_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace convene::worker
