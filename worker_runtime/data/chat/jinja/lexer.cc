#include "worker_runtime/data/chat/jinja/lexer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/value.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker::jinja {
namespace {

// Longer ones first.
constexpr const char* kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                      "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                      ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  absl::StatusOr<std::vector<Token>> Read() {
    while (position_ < source_.size()) {
      const size_t tag = FindTag();
      if (tag == std::string::npos) {
        AddText(source_.substr(position_));
        break;
      }
      CONVENE_RETURN_IF_ERROR(ReadTag(tag));
    }
    MoveTo(source_.size());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::string_view rest() const { return absl::string_view(source_).substr(position_); }
  char Peek(size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }

  size_t FindTag() const {
    for (size_t i = source_.find('{', position_); i != std::string::npos;
         i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return std::string::npos;
  }

  void MoveTo(size_t position) {
    for (; position_ < position; ++position_) {
      if (source_[position_] == '\n') {
        ++place_.line;
        place_.column = 1;
      } else if ((static_cast<uint8_t>(source_[position_]) & 0xC0) != 0x80) {
        ++place_.column;
      }
    }
  }

  void Add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), token_place_.value_or(place_)});
    token_place_.reset();
  }

  void AddText(std::string text) {
    if (!text.empty()) Add(TokenKind::kText, std::move(text));
  }

  absl::Status Wrong(const std::string& what) const {
    return At(place_, absl::InvalidArgumentError(what));
  }
  absl::Status Lacking(const std::string& what) const { return At(place_, NotInSubset(what)); }

  // The text before a tag, the tag's begin and, for a comment, all of it.
  absl::Status ReadTag(size_t tag) {
    std::string text = source_.substr(position_, tag - position_);
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      text = std::string(StripRight(text));
    } else if (sign != '+' && kind != '{') {
      // lstrip_blocks: white space between the line's begin and the tag goes.
      const size_t line = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
      if ((line > 0 || line_starting_) && Strip(text.substr(line)).empty()) text.resize(line);
    }
    AddText(std::move(text));
    MoveTo(tag);
    const Place begin = place_;
    MoveTo(tag + (sign == '-' || sign == '+' ? 3 : 2));
    if (kind == '#') return SkipComment(begin);
    token_place_ = begin;
    Add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    if (kind == '%' && IsRaw()) return Lacking("the block 'raw'");
    return ReadInside(kind == '%', begin);
  }

  bool IsRaw() const {
    absl::string_view inside = StripLeft(rest());
    if (!absl::ConsumePrefix(&inside, "raw")) return false;
    inside = StripLeft(inside);
    return absl::StartsWith(inside, "%}") || absl::StartsWith(inside, "-%}");
  }

  void EndTag(size_t end) {
    line_starting_ = end > 0 && source_[end - 1] == '\n';
    MoveTo(end);
  }

  size_t SkipSpace(size_t position) const {
    const absl::string_view tail = absl::string_view(source_).substr(position);
    return source_.size() - StripLeft(tail).size();
  }

  absl::Status SkipComment(const Place& begin) {
    const size_t close = source_.find("#}", position_);
    if (close == std::string::npos) {
      return At(begin, absl::InvalidArgumentError("the comment has no end '#}'"));
    }
    size_t end = close + 2;
    if (close > position_ && source_[close - 1] == '-') {
      end = SkipSpace(end);
    } else if (!(close > position_ && source_[close - 1] == '+') && end < source_.size() &&
               source_[end] == '\n') {
      ++end;
    }
    EndTag(end);
    return absl::OkStatus();
  }

  // The end of the tag at position_, or nothing when other tokens come first.
  std::optional<size_t> TagEnd(bool block) const {
    if (!open_brackets_.empty()) return std::nullopt;
    const char* const close = block ? "%}" : "}}";
    const absl::string_view tail = rest();
    if (tail.size() >= 3 && tail[0] == '-' && tail.substr(1, 2) == close) {
      return SkipSpace(position_ + 3);
    }
    if (block && absl::StartsWith(tail, "+%}")) return position_ + 3;
    if (!absl::StartsWith(tail, close)) return std::nullopt;
    // trim_blocks: the line's end behind a block goes.
    return position_ + (block && Peek(2) == '\n' ? 3 : 2);
  }

  absl::Status ReadInside(bool block, const Place& begin) {
    open_brackets_.clear();
    while (true) {
      if (const std::optional<size_t> end = TagEnd(block)) {
        Add(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
        EndTag(*end);
        return absl::OkStatus();
      }
      if (position_ >= source_.size()) {
        return At(begin, absl::InvalidArgumentError("the tag has no end"));
      }
      if (IsSpace(CharacterAt(source_, position_).code)) {
        MoveTo(SkipSpace(position_));
        continue;
      }
      token_place_ = place_;
      CONVENE_RETURN_IF_ERROR(ReadToken());
    }
  }

  absl::Status ReadToken() {
    const char c = Peek();
    if (absl::ascii_isdigit(c)) return ReadNumber();
    if (absl::ascii_isalpha(c) || c == '_') {
      size_t end = position_;
      while (end < source_.size() && (absl::ascii_isalnum(source_[end]) || source_[end] == '_')) {
        ++end;
      }
      if (end < source_.size() && static_cast<uint8_t>(source_[end]) >= 0x80) {
        return Lacking("a name with characters outside ASCII");
      }
      std::string name = source_.substr(position_, end - position_);
      MoveTo(end);
      Add(TokenKind::kName, std::move(name));
      return absl::OkStatus();
    }
    if (c == '\'' || c == '"') return ReadString(c);
    if (static_cast<uint8_t>(c) >= 0x80) return Lacking("a name with characters outside ASCII");
    for (const char* const text : kOperators) {
      if (absl::StartsWith(rest(), text)) return ReadOperator(text);
    }
    return Wrong(
        absl::StrCat("the character '", absl::string_view(&c, 1), "' has no meaning here"));
  }

  absl::Status ReadOperator(absl::string_view text) {
    const char c = text[0];
    if (c == '(' || c == '[' || c == '{') {
      open_brackets_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_brackets_.empty() || open_brackets_.back() != c) {
        return Wrong(absl::StrCat("an unexpected '", text, "'"));
      }
      open_brackets_.pop_back();
    }
    MoveTo(position_ + text.size());
    Add(TokenKind::kOperator, std::string(text));
    return absl::OkStatus();
  }

  // The end of digits with single underscores between them.
  size_t DigitsEnd(size_t position) const {
    size_t end = position;
    while (end < source_.size() && absl::ascii_isdigit(source_[end])) {
      ++end;
      if (end + 1 < source_.size() && source_[end] == '_' &&
          absl::ascii_isdigit(source_[end + 1])) {
        ++end;
      }
    }
    return end;
  }

  absl::Status ReadNumber() {
    size_t end = DigitsEnd(position_);
    bool is_float = false;
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' &&
        absl::ascii_isdigit(source_[end + 1])) {
      is_float = true;
      end = DigitsEnd(end + 1);
    }
    if (!after_dot && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const bool sign =
          end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
      const size_t exponent = end + (sign ? 2 : 1);
      if (exponent < source_.size() && absl::ascii_isdigit(source_[exponent])) {
        is_float = true;
        end = DigitsEnd(exponent);
      }
    }
    std::string text = absl::StrReplaceAll(source_.substr(position_, end - position_), {{"_", ""}});
    const bool zeros = text.find_first_not_of('0') == std::string::npos;
    if (!is_float && text[0] == '0' && !zeros) return Wrong("a number that begins with zeros");
    if (end < source_.size() && (absl::ascii_isalnum(source_[end]) || source_[end] == '_')) {
      return Lacking("a number in another base, or with a letter behind it");
    }
    MoveTo(end);
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    return absl::OkStatus();
  }

  absl::Status ReadString(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Wrong("the string has no end");
    std::string value;
    CONVENE_RETURN_IF_ERROR(
        Unescape(absl::string_view(source_).substr(position_ + 1, end - position_ - 1), &value));
    MoveTo(end + 1);
    Add(TokenKind::kString, std::move(value));
    return absl::OkStatus();
  }

  // Python's escapes; one that Python does not know stays as it stands.
  absl::Status Unescape(absl::string_view text, std::string* value) const {
    constexpr absl::string_view kFrom = "abfnrtv\\'\"";
    constexpr absl::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
    while (!text.empty()) {
      const size_t slash = std::min(text.find('\\'), text.size());
      value->append(text.data(), slash);
      text.remove_prefix(slash);
      if (text.empty()) break;
      const char c = text[1];
      const size_t simple = kFrom.find(c);
      if (simple != absl::string_view::npos) {
        value->push_back(kTo[simple]);
        text.remove_prefix(2);
      } else if (c == '\n') {
        text.remove_prefix(2);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        CONVENE_RETURN_IF_ERROR(AppendHex(text.substr(2, digits), digits, value));
        text.remove_prefix(2 + digits);
      } else if (c == 'N' || (c >= '0' && c <= '7')) {
        return Lacking(absl::StrCat("the escape \\", text.substr(1, 1)));
      } else {
        value->push_back('\\');
        text.remove_prefix(1);
      }
    }
    return absl::OkStatus();
  }

  absl::Status AppendHex(absl::string_view digits, size_t count, std::string* value) const {
    uint32_t character = 0;
    if (digits.size() != count ||
        !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit) ||
        !absl::SimpleHexAtoi(digits, &character) || character > 0x10FFFF) {
      return Wrong("an escape that names no character");
    }
    if (character >= 0xD800 && character < 0xE000) return Lacking("half a surrogate pair");
    AppendCharacter(character, value);
    return absl::OkStatus();
  }

  const std::string source_;
  size_t position_ = 0;
  Place place_;
  // Where the next token began, when that is not here.
  std::optional<Place> token_place_;
  // Whether the last tag took a line's end with it.
  bool line_starting_ = true;
  // The brackets that must come before the tag may end.
  std::vector<char> open_brackets_;
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status At(const Place& place, const absl::Status& status) {
  if (status.ok()) return status;  // before a message is made
  return Annotate(status, absl::StrCat("line ", place.line, ", column ", place.column));
}

absl::StatusOr<std::vector<Token>> ReadTokens(absl::string_view source) {
  if (!IsUtf8(source)) return absl::InvalidArgumentError("the chat template is not UTF-8");
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  // Jinja2 drops one line's end at the end.
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return Lexer(std::move(text)).Read();
}

}  // namespace convene::worker::jinja
