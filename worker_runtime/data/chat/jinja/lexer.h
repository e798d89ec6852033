// PURE. A template's text to tokens, with the white space control of Jinja2 3.1 under trim_blocks
// and lstrip_blocks, as transformers sets them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker::jinja {

// Both from 1; the column counts characters.
struct Place {
  int line = 1;
  int column = 1;
};

// The same code, with "line 3, column 14: " before the message.
absl::Status At(const Place& place, const absl::Status& status);

enum class TokenKind {
  kText,  // what stands outside the tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,   // `text` is the value: escapes are replaced
  kInteger,  // `text` is digits alone
  kFloat,
  kOperator,
  kEnd,  // the last token
};

struct Token {
  TokenKind kind;
  std::string text;
  Place place;
};

// InvalidArgument: Jinja2 refuses it too, or it is not UTF-8. Unimplemented: raw blocks, numbers in
// another base, names and escapes beyond ASCII. Both with line and column.
absl::StatusOr<std::vector<Token>> ReadTokens(absl::string_view source);

}  // namespace convene::worker::jinja
