// PURE. The last lines that a worker wrote, for the report of its failure.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::agent {

// Both streams together. Not thread-safe.
class LastLines {
 public:
  static constexpr size_t kLines = 20;
  static constexpr size_t kLongestLine = 500;  // bytes; the rest of a longer line is cut off

  // Bytes that are not UTF-8 become '?': the report travels in protobuf strings, which allow
  // nothing else.
  void Add(absl::string_view line);
  std::vector<std::string> Get() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace convene::agent
