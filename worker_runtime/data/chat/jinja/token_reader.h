// PURE. A place in a list of tokens, and how deep the parser is below it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker_runtime/data/chat/jinja/lexer.h"

namespace convene::worker::jinja {

class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[next_]; }
  const Token& ahead() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  const Place& place() const { return current().place; }

  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsOperator(absl::string_view text) const { return Matches(current(), text); }
  bool IsName(absl::string_view text) const {
    return Is(TokenKind::kName) && current().text == text;
  }
  static bool Matches(const Token& token, absl::string_view text) {
    return token.kind == TokenKind::kOperator && token.text == text;
  }

  // The last token stays the current one.
  Token Take() {
    Token token = tokens_[next_];
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }
  bool Skip(TokenKind kind) { return Is(kind) && (Take(), true); }
  bool SkipOperator(absl::string_view text) { return IsOperator(text) && (Take(), true); }
  bool SkipName(absl::string_view text) { return IsName(text) && (Take(), true); }

  absl::Status ExpectOperator(absl::string_view text) {
    return SkipOperator(text) ? absl::OkStatus() : Wrong(absl::StrCat("'", text, "'"));
  }
  absl::StatusOr<std::string> ExpectName() {
    if (!Is(TokenKind::kName)) return Wrong("a name");
    return Take().text;
  }
  absl::Status ExpectBlockEnd() {
    return Skip(TokenKind::kBlockEnd) ? absl::OkStatus() : Wrong("'%}'");
  }

  // InvalidArgument at the current token.
  absl::Status Wrong(const std::string& expected) const {
    return At(place(), absl::InvalidArgumentError(absl::StrCat("expected ", expected, ", but ",
                                                               Describe(), " stands here")));
  }
  static absl::Status Refuse(const Place& place, const std::string& what) {
    return At(place, absl::InvalidArgumentError(what));
  }
  static absl::Status Lacking(const Place& place, const std::string& what) {
    return At(place, absl::UnimplementedError(
                         absl::StrCat(what, " is not in the subset of Jinja2 that we know")));
  }

 private:
  std::string Describe() const {
    switch (current().kind) {
      case TokenKind::kEnd:
        return "the template's end";
      case TokenKind::kText:
        return "text";
      case TokenKind::kVariableBegin:
        return "'{{'";
      case TokenKind::kVariableEnd:
        return "'}}'";
      case TokenKind::kBlockBegin:
        return "'{%'";
      case TokenKind::kBlockEnd:
        return "'%}'";
      case TokenKind::kString:
        return "a string";
      default:
        return absl::StrCat("'", current().text, "'");
    }
  }

  const std::vector<Token> tokens_;
  size_t next_ = 0;
};

}  // namespace convene::worker::jinja
