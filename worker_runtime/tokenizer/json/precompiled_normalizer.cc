#include "worker_runtime/tokenizer/json/precompiled_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/characters.h"

namespace convene::worker {
namespace {

// Longer grapheme clusters are looked up character by character.
constexpr size_t kLookedUpWhole = 6;

// The fields of a unit of a double array, as Darts-clone packs them.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
size_t Offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & 1u << 9) >> 6); }

class Precompiled : public NormalizerStep {
 public:
  Precompiled(std::vector<uint32_t> units, std::string texts)
      : units_(std::move(units)), texts_(std::move(texts)) {
    for (size_t i = 0; i < is_plain_.size(); ++i) {
      const char c = static_cast<char>(i);
      // A carriage return may be one cluster with the character behind it.
      is_plain_[i] = c != '\r' && !Find(absl::string_view(&c, 1)).has_value();
    }
  }

  bool Leaves(absl::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [this](char c) { return IsPlain(c); });
  }

  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    size_t result_at_start = 0;
    for (size_t at = 0; at < text.size();) {
      // An ASCII character between ASCII characters is a cluster of its own.
      if (IsPlain(text[at]) && at + 1 < text.size() && IsPlain(text[at + 1])) {
        result->push_back(text[at++]);
      } else {
        const size_t end = ClusterEnd(text, at);
        AppendCluster(text.substr(at, end - at), result);
        at = end;
      }
      if (at_start > 0 && result_at_start == 0) result_at_start = result->size();
    }
    return result_at_start;
  }

 private:
  bool IsPlain(char c) const {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x80 && is_plain_[byte];
  }

  static size_t ClusterEnd(absl::string_view text, size_t at) {
    utf8proc_int32_t state = 0;
    Character character = CharacterAt(text, at);
    while (true) {
      at += character.bytes;
      if (at == text.size()) return at;
      const Character next = CharacterAt(text, at);
      if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(character.code),
                                           static_cast<utf8proc_int32_t>(next.code), &state)) {
        return at;
      }
      character = next;
    }
  }

  void AppendCluster(absl::string_view cluster, std::string* result) const {
    if (cluster.size() < kLookedUpWhole) {
      if (const auto text = Find(cluster); text.has_value()) {
        result->append(text->data(), text->size());
        return;
      }
    }
    for (size_t at = 0; at < cluster.size();) {
      const absl::string_view character = cluster.substr(at, CharacterAt(cluster, at).bytes);
      const absl::string_view text = Find(character).value_or(character);
      result->append(text.data(), text.size());
      at += character.size();
    }
  }

  // The text of the shortest key that `key` begins with.
  std::optional<absl::string_view> Find(absl::string_view key) const {
    size_t at = Offset(units_[0]);
    for (const char c : key) {
      const uint32_t byte = static_cast<unsigned char>(c);
      if (byte == 0) return std::nullopt;
      at ^= byte;
      if (at >= units_.size() || Label(units_[at]) != byte) return std::nullopt;
      const bool has_leaf = HasLeaf(units_[at]);
      at ^= Offset(units_[at]);
      if (!has_leaf) continue;
      if (at >= units_.size()) return std::nullopt;
      return TextAt(Value(units_[at]));
    }
    return std::nullopt;
  }

  std::optional<absl::string_view> TextAt(size_t begin) const {
    // A damaged trie may point outside of the texts, or into a character.
    if (begin >= texts_.size() || (static_cast<unsigned char>(texts_[begin]) & 0xC0) == 0x80) {
      return std::nullopt;
    }
    const size_t end = std::min(texts_.find('\0', begin), texts_.size());
    return absl::string_view(texts_).substr(begin, end - begin);
  }

  const std::vector<uint32_t> units_;  // at least one
  const std::string texts_;            // UTF-8
  std::array<bool, 128> is_plain_;     // ASCII characters that stay
};

}  // namespace

absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadPrecompiled(const JsonNode& charsmap) {
  CONVENE_ASSIGN_OR_RETURN(const std::string encoded, charsmap.String());
  std::string bytes;
  if (!absl::Base64Unescape(encoded, &bytes)) return charsmap.Error("should be base64");
  uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof(trie_bytes)) return charsmap.Error("is too short");
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - sizeof(trie_bytes)) {
    return charsmap.Error("gives a wrong size of its trie");
  }
  std::vector<uint32_t> units(trie_bytes / 4);
  std::memcpy(units.data(), bytes.data() + sizeof(trie_bytes), trie_bytes);
  std::string texts = bytes.substr(sizeof(trie_bytes) + trie_bytes);
  if (!IsUtf8(texts)) return charsmap.Error("has texts that are no UTF-8");
  return std::make_unique<Precompiled>(std::move(units), std::move(texts));
}

}  // namespace convene::worker
