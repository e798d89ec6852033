// An input of a fuzzer as a script of bytes and pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace convene {

// Takes the input apart.
class Script {
 public:
  explicit Script(absl::string_view bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }
  uint8_t Byte() {
    const auto byte = bytes_.empty() ? uint8_t{0} : static_cast<uint8_t>(bytes_[0]);
    bytes_.remove_prefix(std::min<size_t>(1, bytes_.size()));
    return byte;
  }
  absl::string_view Piece(size_t length) {
    const absl::string_view piece = bytes_.substr(0, length);
    bytes_.remove_prefix(piece.size());
    return piece;
  }
  absl::string_view Rest() { return Piece(bytes_.size()); }

 private:
  absl::string_view bytes_;
};

}  // namespace convene
