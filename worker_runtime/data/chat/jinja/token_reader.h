// PURE. A place in a list of tokens, and the first error that a parser met on its way there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/lexer.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker::jinja {

// After an error the current token is the template's end. A parser finds nothing there that it
// could go on with, so all its functions return soon, with trees that are of no use: the caller of
// the parser asks status() once, at the end.
class TokenReader {
 public:
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const absl::Status& status() const { return status_; }
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

  void ExpectOperator(absl::string_view text) {
    if (!SkipOperator(text)) Wrong(absl::StrCat("'", text, "'"));
  }
  void ExpectBlockEnd() {
    if (!Skip(TokenKind::kBlockEnd)) Wrong("'%}'");
  }
  std::string ExpectName() {
    if (Is(TokenKind::kName)) return Take().text;
    Wrong("a name");
    return "";
  }

  // An error at `place`, unless there was one before. All return nullptr: no tree.
  std::nullptr_t Fail(const Place& place, const absl::Status& status) {
    if (status_.ok()) status_ = At(place, status);
    next_ = tokens_.size() - 1;
    return nullptr;
  }
  std::nullptr_t Refuse(const Place& place, const std::string& what) {
    return Fail(place, absl::InvalidArgumentError(what));
  }
  std::nullptr_t Lacking(const Place& place, const std::string& what) {
    return Fail(place, NotInSubset(what));
  }
  // At the current token.
  std::nullptr_t Wrong(const std::string& expected) {
    return Refuse(place(),
                  absl::StrCat("expected ", expected, ", but ", Describe(), " stands here"));
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
  absl::Status status_;
};

}  // namespace convene::worker::jinja
