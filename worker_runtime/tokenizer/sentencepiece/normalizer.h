// From a text as people write it to the text that a SentencePiece model cuts into pieces.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/byte_trie.h"
#include "worker_runtime/tokenizer/sentencepiece/charsmap.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"

namespace convene::worker {

// sentencepiece/src/normalizer.cc. PURE, read-only, thread-safe.
class Normalizer {
 public:
  // `charsmap` is that of `spec`. Texts in `user_symbols` pass as they are; may be null, and must
  // outlive the normalizer.
  Normalizer(const NormalizerSpec& spec, Charsmap charsmap, bool treat_whitespace_as_suffix,
             const ByteTrie* user_symbols);

  // Replaces `normalized`, which is valid UTF-8 whatever `text` is: each byte that is no UTF-8
  // becomes a U+FFFD.
  void Normalize(absl::string_view text, std::string* normalized) const;

 private:
  // The first character or characters of a text, and what becomes of them.
  struct Step {
    size_t length = 0;
    absl::string_view result;
  };
  Step Next(absl::string_view text) const;
  // The end of the bytes from `begin` on that stay as they are and are no spaces. May stop early.
  size_t PlainEnd(absl::string_view text, size_t begin) const;
  void AppendSpacesReplaced(absl::string_view text, std::string* normalized) const;

  Charsmap charsmap_;
  const ByteTrie* user_symbols_;
  bool add_dummy_prefix_, remove_extra_whitespaces_, treat_whitespace_as_suffix_;
  absl::string_view space_;
  std::array<bool, 256> is_plain_{};  // ASCII that is no space and begins no user symbol
};

}  // namespace convene::worker
