// PURE. Keeps the text of special tokens in a conversation from becoming those tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/chat/jinja/value.h"
#include "worker_runtime/tokenizer/byte_trie.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Read-only and thread-safe. A chat template's text is tokenised with its special tokens; a user
// who writes "<|eot_id|>" must not end the turn. So a character that no text has (U+E0F2) goes into
// each such text before the template is rendered, behind its first character; afterwards it is
// taken out, and the text is cut there before it is tokenised. A part of a content that ends like
// the begin of such a text gets one at its end: the template writes parts one behind the other.
//
// DeepSeek's "<｜User｜>" is an added token without the mark "special"; it must not be forged
// either. Of these tokens, the ones that `template_source` writes or that have a bar (| or ｜) in
// them are broken too, but for white space and words ("user"), and but for the assistant's
// messages: an answer may well have "<think>" or "<tool_call>".
//
// A SentencePiece model has Gemma's "<start_of_turn>" as a piece that is taken whole in every text,
// not as a control piece. An added token with the text of a special token of a format known by name
// is a turn token: it counts as a special token here.
class SpecialTexts {
 public:
  SpecialTexts(const Tokenizer& tokenizer, absl::string_view template_source);

  // Of the special tokens and the turn tokens.
  const std::vector<std::string>& texts() const { return texts_; }
  // Absent: the tokenizer has no turn token with this text, or has it as a special token.
  std::optional<int32_t> TurnTokenId(absl::string_view text) const;
  // Where a text of which no special token is made must be cut, so that no turn token is either.
  std::vector<size_t> CutsOf(absl::string_view text) const { return CutsOf(turns_, text); }

  // Breaks those texts in the messages and in the values of the variables; whether
  // there are any. InvalidArgument: then the conversation has U+E0F2 itself.
  absl::StatusOr<bool> Break(Conversation* conversation) const;

  // Takes the characters that Break put in out of `text`, and moves the spans accordingly. Returns
  // the places where they stood. InvalidArgument: the template made something else of one.
  static absl::StatusOr<std::vector<size_t>> Mend(std::string* text,
                                                  std::vector<jinja::TextSpan>* spans);

 private:
  struct Pass {
    const ByteTrie* texts;
    bool found = false;
    bool mark = false;  // U+E0F2
  };
  // Behind the first character of each of `texts` in `text`.
  static std::vector<size_t> CutsOf(const ByteTrie& texts, absl::string_view text);
  // `is_part`: `value` stands in the list of parts that a content is.
  static absl::StatusOr<jinja::Value> BreakValue(const jinja::Value& value, bool is_part,
                                                 Pass* pass);
  static jinja::Value BreakString(const jinja::Value& value, bool is_part, Pass* pass);

  std::vector<std::string> texts_;
  absl::flat_hash_map<std::string, int32_t> turn_ids_;
  ByteTrie turns_{{}};
  ByteTrie specials_{{}};  // and turns_
  ByteTrie all_{{}};       // those of added tokens too
};

}  // namespace convene::worker
