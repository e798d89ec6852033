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
//
// DeepSeek's "<｜User｜>" is an added token without the mark "special"; it must not be forged
// either. Of these tokens, the ones that `template_source` writes or that have a bar (| or ｜) in
// them are broken too, but for white space and words ("user"), and but for the assistant's
// messages: an answer may well have "<think>" or "<tool_call>".
class SpecialTexts {
 public:
  SpecialTexts(const Tokenizer& tokenizer, absl::string_view template_source);

  const std::vector<std::string>& texts() const { return texts_; }

  // Breaks those texts in the messages and in the values of the variables; whether
  // there are any. InvalidArgument: then the conversation has U+E0F2 itself.
  absl::StatusOr<bool> Break(Conversation* conversation) const;

  // Takes the characters that Break put in out of `text`, and moves the spans accordingly. Returns
  // the places where they stood. InvalidArgument: the template made something else of one.
  static absl::StatusOr<std::vector<size_t>> Mend(std::string* text,
                                                  std::vector<jinja::TextSpan>* spans);

 private:
  class TextSet {
   public:
    // False: it is there already.
    bool Add(const std::string& text);
    // The length of the longest one that `text` begins with; 0: none.
    size_t LengthAt(absl::string_view text) const;
    // Whether `text` ends with the begin of one, but not with a whole one.
    bool EndsLikeBegin(absl::string_view text) const;

   private:
    absl::flat_hash_set<std::string> set_;
    // For each first byte the lengths of the texts that begin with it, longest first.
    std::array<std::vector<size_t>, 256> lengths_;
    absl::flat_hash_set<std::string> begins_;
    size_t longest_ = 0;  // bytes
  };
  struct Pass {
    const TextSet* texts;
    bool found = false;
    bool mark = false;  // U+E0F2
  };
  // `is_part`: `value` stands in the list of parts that a content is.
  static absl::StatusOr<jinja::Value> BreakValue(const jinja::Value& value, bool is_part,
                                                 Pass* pass);
  static jinja::Value BreakString(const jinja::Value& value, bool is_part, Pass* pass);

  std::vector<std::string> texts_;
  TextSet specials_;
  TextSet all_;  // those of added tokens too
};

}  // namespace convene::worker
