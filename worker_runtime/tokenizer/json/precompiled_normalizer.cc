#include "worker_runtime/tokenizer/json/normalizer_steps.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/sentencepiece/charsmap.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Longer grapheme clusters are looked up character by character.
constexpr size_t kLookedUpWhole = 6;

class Precompiled : public NormalizerStep {
 public:
  explicit Precompiled(Charsmap charsmap) : charsmap_(std::move(charsmap)) {
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

  // The replacement of `text`, if there is a rule for it.
  std::optional<absl::string_view> Find(absl::string_view text) const {
    const Charsmap::Rule rule = charsmap_.Shortest(text);
    if (rule.length == 0) return std::nullopt;
    return rule.replacement;
  }

  const Charsmap charsmap_;
  std::array<bool, 128> is_plain_ = {};  // ASCII characters that stay
};

}  // namespace

absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadPrecompiled(const JsonNode& charsmap) {
  CONVENE_ASSIGN_OR_RETURN(const std::string encoded, charsmap.String());
  std::string bytes;
  if (!absl::Base64Unescape(encoded, &bytes)) return charsmap.Error("should be base64");
  absl::StatusOr<Charsmap> map = Charsmap::Read(bytes);
  if (!map.ok()) return Annotate(map.status(), charsmap.place());
  return std::make_unique<Precompiled>(*std::move(map));
}

}  // namespace convene::worker
