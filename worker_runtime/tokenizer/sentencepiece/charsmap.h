// The rules of a SentencePiece normalizer ("precompiled_charsmap"), which tokenizer.json's
// Precompiled normalizer has too.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// What becomes of which characters, such as "ﬁ" -> "fi". PURE, read-only, thread-safe.
//
// Format (sentencepiece/src/normalizer.cc, darts-clone's darts.h): u32 bytes of the trie, little
// endian; the trie, a Darts double array of u32 units; then the replacements, each ended by NUL. A
// key's value is the place of its replacement.
class Charsmap {
 public:
  // No rules.
  Charsmap() = default;

  // An empty `blob` has no rules. InvalidArgument: cut short, or replacements that are not UTF-8.
  // Whatever the trie holds, it is never read outside its bounds.
  static absl::StatusOr<Charsmap> Read(absl::string_view blob);

  struct Rule {
    size_t length = 0;              // bytes that the rule replaces; 0: no rule
    absl::string_view replacement;  // valid UTF-8, may be empty; lives as long as the Charsmap
  };
  // The longest rule for what `text` begins with, as SentencePiece takes it.
  Rule Longest(absl::string_view text) const { return Find(text, kMostMatches); }
  // The shortest one, as Hugging Face's spm_precompiled takes it.
  Rule Shortest(absl::string_view text) const { return Find(text, 1); }

  // False: no rule is for a text that begins with these two bytes. A quick test.
  bool MayBegin(unsigned char first, unsigned char second) const {
    return !units_.empty() && beginnings_[first << 8 | second];
  }

 private:
  // SentencePiece looks at so many rules for one place (kMaxTrieResultsSize).
  static constexpr int kMostMatches = 32;

  Rule Find(absl::string_view text, int most_matches) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::bitset<65536> beginnings_;
};

}  // namespace convene::worker
