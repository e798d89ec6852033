// PURE. The text of tokens that come one by one, as it can be shown: no half characters, and
// nothing that may turn out to be a text that ends the answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Not thread-safe. Borrows the tokenizer.
class TextStream {
 public:
  // `stop_texts`: the text ends before the first of them that appears in it, or before the special
  // token whose text one of them is. None is empty.
  // `prompt`: what the tokens go on with, which tells whether they begin with a space.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_texts,
             absl::Span<const int32_t> prompt);

  // The text that may be shown now that this token has come.
  std::string Add(int32_t token);
  // A stop text has appeared: nothing more will be shown.
  bool is_stopped() const { return is_stopped_; }
  // No token comes any more: the rest of the text.
  std::string Finish();

 private:
  std::string Decoded(size_t begin, size_t end) const;
  // The text of the tokens from end_ on. Decoded with those before them, unless that changes the
  // text of those: a decoder takes bytes that are no characters together.
  std::string NewText() const;
  // Takes from held_ what may be shown; `all`: no text comes any more.
  std::string Show(bool all);

  const Tokenizer& tokenizer_;
  const std::vector<std::string> stop_texts_;
  std::vector<int32_t> tokens_;  // behind the last ones of the prompt
  // The text of the tokens before end_ was taken; those from begin_ on tell how the next is
  // decoded (a leading space).
  size_t begin_ = 0;
  size_t end_ = 0;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace convene::worker
