// PURE. Keeps the text of special tokens in a conversation from becoming those tokens.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/chat/jinja/value.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Read-only and thread-safe. A chat template's text is tokenised with its special tokens; a user
// who writes "<|eot_id|>" must not end the turn. So a character that no text has (U+E0F2) goes into
// each such text before the template is rendered, behind its first character; afterwards it is
// taken out, and the text is cut there before it is tokenised. A part of a content that ends like
// the begin of such a text gets one at its end: the template writes parts one behind the other.
class SpecialTexts {
 public:
  explicit SpecialTexts(const Tokenizer& tokenizer);

  const std::vector<std::string>& texts() const { return texts_; }

  // Breaks the texts of special tokens in the messages and in the values of the variables; whether
  // there are any. InvalidArgument: then the conversation has U+E0F2 itself.
  absl::StatusOr<bool> Break(Conversation* conversation) const;

  // Takes the characters that Break put in out of `text`, and moves the spans accordingly. Returns
  // the places where they stood. InvalidArgument: the template made something else of one.
  static absl::StatusOr<std::vector<size_t>> Mend(std::string* text,
                                                  std::vector<jinja::TextSpan>* spans);

 private:
  struct Found {
    bool special = false;
    bool mark = false;  // U+E0F2
  };
  // `is_part`: `value` stands in the list of parts that a content is.
  absl::StatusOr<jinja::Value> BreakValue(const jinja::Value& value, bool is_part,
                                          Found* found) const;
  jinja::Value BreakString(const jinja::Value& value, bool is_part, Found* found) const;
  // The length of the special text that `text` begins with; 0: none.
  size_t SpecialAt(absl::string_view text) const;
  bool EndsLikeBegin(absl::string_view text) const;

  std::vector<std::string> texts_;
  absl::flat_hash_set<std::string> set_;
  // For each first byte the lengths of the special texts that begin with it, longest first.
  std::array<std::vector<size_t>, 256> lengths_;
  // What special texts begin with: of each all but the whole.
  absl::flat_hash_set<std::string> begins_;
  size_t longest_ = 0;  // bytes of a special text
};

}  // namespace convene::worker
