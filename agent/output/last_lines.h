// PURE. The last lines that a worker wrote, for the report of its failure.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::agent {

// The last lines of one stream. Not thread-safe. Add costs a copy of the line and, after the first
// lines, no allocation.
class LastLines {
 public:
  static constexpr size_t kLines = 20;
  static constexpr size_t kLongestLine = 500;  // bytes; the rest of a longer line is cut off

  void Add(absl::string_view line);
  // Oldest first, each as Utf8() makes it.
  std::vector<std::string> Get() const;

 private:
  std::array<std::string, kLines> lines_;  // a ring
  size_t added_ = 0;
};

}  // namespace convene::agent
