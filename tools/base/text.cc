#include "tools/base/text.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace convene {
namespace {

char Fold(char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); }

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (Fold(a[i - 1]) == Fold(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

// The promise of a lead byte: its character's length, and the range of the second byte, which alone
// keeps out overlong forms, surrogates and numbers above U+10FFFF (Unicode 15, table 3-7).
struct Lead {
  uint8_t length = 0;  // 0: not a lead byte
  unsigned char second_min = 0x80, second_max = 0xBF;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2 || byte > 0xF4) return {0};
  if (byte < 0xE0) return {2};
  if (byte < 0xF0) {
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    return {3};
  }
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {4};
}

}  // namespace

std::string ClosestMatch(absl::string_view word, const std::vector<std::string>& candidates) {
  const size_t limit = std::max<size_t>(2, word.size() / 3);
  size_t best = limit + 1;
  std::string match;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    if (distance < best) {
      best = distance;
      match = candidate;
    }
  }
  return match;
}

std::string JoinCapped(const std::vector<std::string>& items, size_t limit) {
  if (items.size() <= limit) return absl::StrJoin(items, ", ");
  return absl::StrCat(absl::StrJoin(items.begin(), items.begin() + limit, ", "), " and ",
                      items.size() - limit, " more");
}

Utf8Character FirstCharacter(absl::string_view text) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
  const Lead lead = LeadOf(bytes[0]);
  if (lead.length == 1) return {1, true};
  if (lead.length == 0 || text.size() < 2) return {1, false};
  if (bytes[1] < lead.second_min || bytes[1] > lead.second_max) return {1, false};
  for (uint8_t i = 2; i < lead.length; ++i) {
    if (i >= text.size() || (bytes[i] & 0xC0) != 0x80) return {i, false};
  }
  return {lead.length, true};
}

std::string Utf8(absl::string_view text, size_t longest) {
  std::string kept;
  while (!text.empty()) {
    const Utf8Character first = FirstCharacter(text);
    const size_t used = first.is_valid ? first.length : 1;
    if (kept.size() + used > longest) break;
    kept.append(first.is_valid ? text.data() : "?", used);
    text.remove_prefix(used);
  }
  return kept;
}

std::string Printable(absl::string_view text) {
  std::string shown = Utf8(text);
  for (size_t i = 0; i < shown.size(); ++i) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(shown[i]))) shown[i] = '?';
    // U+0080 to U+009F: ISO 6429's second set of controls, two bytes each.
    const bool is_second_set =
        shown[i] == '\xC2' && static_cast<unsigned char>(shown[i + 1]) < 0xA0;
    if (is_second_set) shown.replace(i, 2, "?");
  }
  return shown;
}

std::string PrintableLines(absl::string_view text) {
  return absl::StrJoin(absl::StrSplit(text, '\n'), "\n",
                       [](std::string* out, absl::string_view line) { *out += Printable(line); });
}

std::string HumanBytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes,
                units[unit]);
  return text;
}

}  // namespace convene
