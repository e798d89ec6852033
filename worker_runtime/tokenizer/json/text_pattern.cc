#include "worker_runtime/tokenizer/json/text_pattern.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/characters.h"

namespace convene::worker {
namespace {

class LiteralPattern : public SplitPattern {
 public:
  explicit LiteralPattern(std::string text) : text_(std::move(text)) {}

  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    for (; limit > 0; --limit) {
      const size_t at = text.find(text_, begin);
      if (at == absl::string_view::npos) return text.size();
      begin = at + text_.size();
      matches->push_back({at, begin});
    }
    return begin;
  }

 private:
  const std::string text_;
};

class CharacterPattern : public SplitPattern {
 public:
  explicit CharacterPattern(bool (*is_match)(char32_t)) : is_match_(is_match) {}

  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    while (begin < text.size() && limit > 0) {
      const Character character = CharacterAt(text, begin);
      if (is_match_(character.code)) {
        matches->push_back({begin, begin + character.bytes});
        --limit;
      }
      begin += character.bytes;
    }
    return begin;
  }

 private:
  bool (*const is_match_)(char32_t);
};

class WordPattern : public SplitPattern {
 public:
  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    while (begin < text.size() && limit > 0) {
      const Class first = ClassAt(text, begin);
      size_t end = begin + first.bytes;
      while (end < text.size()) {
        const Class next = ClassAt(text, end);
        if (next.kind != first.kind) break;
        end += next.bytes;
      }
      if (first.kind != kSpace) {
        matches->push_back({begin, end});
        --limit;
      }
      begin = end;
    }
    return begin;
  }

 private:
  enum ClassKind { kWord, kSpace, kOther };
  struct Class {
    ClassKind kind;
    size_t bytes;
  };
  static Class ClassAt(absl::string_view text, size_t at) {
    const Character character = CharacterAt(text, at);
    if (IsWordCharacter(character.code)) return {kWord, character.bytes};
    return {IsWhiteSpace(character.code) ? kSpace : kOther, character.bytes};
  }
};

}  // namespace

std::unique_ptr<SplitPattern> MakeLiteralPattern(std::string text) {
  return std::make_unique<LiteralPattern>(std::move(text));
}

std::unique_ptr<SplitPattern> MakeCharacterPattern(bool (*is_match)(char32_t)) {
  return std::make_unique<CharacterPattern>(is_match);
}

std::unique_ptr<SplitPattern> MakeWordPattern() { return std::make_unique<WordPattern>(); }

absl::StatusOr<std::unique_ptr<SplitPattern>> ReadPattern(const JsonNode& pattern) {
  if (const auto regex = pattern.Find("Regex"); regex.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(const std::string expression, regex->String());
    absl::StatusOr<std::unique_ptr<SplitPattern>> made = MakeSplitPattern(expression);
    if (!made.ok()) return Annotate(made.status(), regex->place());
    return made;
  }
  // An old file has the bare text here.
  const auto literal = pattern.Find("String");
  CONVENE_ASSIGN_OR_RETURN(std::string text, literal.value_or(pattern).String());
  if (text.empty()) return LacksFeature(pattern.place(), "\"pattern\" with an empty text");
  return MakeLiteralPattern(std::move(text));
}

}  // namespace convene::worker
