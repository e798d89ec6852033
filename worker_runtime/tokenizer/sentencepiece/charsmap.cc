#include "worker_runtime/tokenizer/sentencepiece/charsmap.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "the units are little endian");

// The longest of SentencePiece's own has 33 bytes. Without a bound, a damaged file could make
// megabytes of each character.
constexpr size_t kLongestReplacement = 4096;

// The parts of one unit of a Darts double array (darts-clone, class DoubleArrayUnit).
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t LabelOf(uint32_t unit) { return unit & 0x800000FF; }
uint32_t OffsetOf(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Read(absl::string_view blob) {
  Charsmap map;
  if (blob.empty()) return map;
  uint32_t trie_bytes = 0;
  if (blob.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  if (blob.size() <= sizeof(trie_bytes) || trie_bytes > blob.size() - sizeof(trie_bytes)) {
    return absl::InvalidArgumentError("the normalizer's precompiled_charsmap is cut short");
  }
  blob.remove_prefix(sizeof(trie_bytes));
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  if (!map.units_.empty()) {
    std::memcpy(map.units_.data(), blob.data(), map.units_.size() * sizeof(uint32_t));
  }
  map.replacements_ = std::string(blob.substr(trie_bytes));
  if (!IsUtf8(map.replacements_)) {
    return absl::InvalidArgumentError(
        "the normalizer's precompiled_charsmap replaces characters by bytes that are not UTF-8");
  }
  for (const absl::string_view text : absl::StrSplit(map.replacements_, '\0')) {
    if (text.size() <= kLongestReplacement) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the normalizer's precompiled_charsmap replaces characters by ", text.size(),
                     " bytes; the file is damaged: fetch it again"));
  }
  if (map.units_.empty()) return map;
  const uint32_t root = OffsetOf(map.units_[0]);
  for (uint32_t first = 0; first < 256; ++first) {
    const size_t place = root ^ first;
    if (place >= map.units_.size() || LabelOf(map.units_[place]) != first) continue;
    const uint32_t unit = map.units_[place];
    for (uint32_t second = 0; second < 256; ++second) {
      const size_t next = place ^ OffsetOf(unit) ^ second;
      map.beginnings_[first << 8 | second] =
          HasLeaf(unit) || (next < map.units_.size() && LabelOf(map.units_[next]) == second);
    }
  }
  return map;
}

Charsmap::Rule Charsmap::Find(absl::string_view text, int most_matches) const {
  Rule rule;
  if (units_.empty()) return rule;
  size_t place = OffsetOf(units_[0]);
  const size_t end = std::min(text.size(), kLongestKey);
  for (size_t i = 0; i < end && most_matches > 0; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    place ^= byte;
    if (place >= units_.size()) break;
    const uint32_t unit = units_[place];
    if (LabelOf(unit) != byte) break;
    place ^= OffsetOf(unit);
    if (!HasLeaf(unit) || place >= units_.size()) continue;
    --most_matches;
    const size_t begin = ValueOf(units_[place]);
    // A place that is no character's beginning comes from a damaged file.
    if (begin >= replacements_.size() || (replacements_[begin] & 0xC0) == 0x80) continue;
    const char* text_begin = replacements_.data() + begin;
    rule = {i + 1,
            absl::string_view(text_begin, strnlen(text_begin, replacements_.size() - begin))};
  }
  return rule;
}

}  // namespace convene::worker
