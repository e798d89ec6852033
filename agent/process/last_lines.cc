#include "agent/process/last_lines.h"

#include <cstdint>

namespace convene::agent {
namespace {

// The length of the UTF-8 character that `text` begins with; 0 when it begins with none. RFC 3629,
// section 4.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first < 0xE0   ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Not the shortest form, a surrogate, or above U+10FFFF.
  const uint8_t second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

}  // namespace

std::string LastLines::Clean(absl::string_view line, size_t longest) {
  std::string kept;
  while (!line.empty()) {
    const size_t length = CharacterLength(line);
    const size_t used = length == 0 ? 1 : length;
    if (kept.size() + used > longest) break;
    kept.append(length == 0 ? "?" : line.data(), used);
    line.remove_prefix(used);
  }
  return kept;
}

void LastLines::Add(absl::string_view line) {
  // As much as Clean can look at: a character has at most 4 bytes.
  line = line.substr(0, kLongestLine + 4);
  lines_[added_ % kLines].assign(line.data(), line.size());
  ++added_;
}

std::vector<std::string> LastLines::Get() const {
  std::vector<std::string> lines;
  for (size_t i = added_ < kLines ? 0 : added_ - kLines; i < added_; ++i) {
    lines.push_back(Clean(lines_[i % kLines]));
  }
  return lines;
}

}  // namespace convene::agent
