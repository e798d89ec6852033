// PURE. Output that could not be written: how much, and why.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace convene {

struct LostOutput {
  int64_t lines = 0;  // ends of lines
  int64_t bytes = 0;
  int error = 0;  // errno of the last write that failed; EAGAIN: the reader takes nothing

  bool any() const { return bytes > 0; }
  void Add(absl::string_view lost, int because);
  // "3 lines (1.2 KiB)"
  std::string Amount() const;
  // "No space left on device"; "" where no error is known.
  std::string Reason() const;
};

}  // namespace convene
