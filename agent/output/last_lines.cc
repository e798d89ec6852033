#include "agent/output/last_lines.h"

#include "tools/base/text.h"

namespace convene::agent {

void LastLines::Add(absl::string_view line) {
  // Utf8 needs no more bytes than this: a character has at most 4.
  line = line.substr(0, kLongestLine + 4);
  lines_[added_ % kLines].assign(line.data(), line.size());
  ++added_;
}

std::vector<std::string> LastLines::Get() const {
  std::vector<std::string> lines;
  for (size_t i = added_ < kLines ? 0 : added_ - kLines; i < added_; ++i) {
    lines.push_back(Utf8(lines_[i % kLines], kLongestLine));
  }
  return lines;
}

}  // namespace convene::agent
