// Part of pattern_reader.h: sets in brackets, and what (?i) makes of characters.
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/pattern/pattern_reader.h"
#include "worker_runtime/tokenizer/pattern/properties.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

constexpr int kMaxDepth = 50;

// A letter of ASCII in both cases, and what Unicode folds to it: the long s and the Kelvin sign.
CharacterSet LetterInAnyCase(char letter) {
  const char32_t lower = absl::ascii_tolower(letter), upper = absl::ascii_toupper(letter);
  CharacterSet set = CharacterSet::Of({{upper, upper}, {lower, lower}});
  if (lower == 's') set = set.Or(CharacterSet::Of(0x17F, 0x17F));
  if (lower == 'k') set = set.Or(CharacterSet::Of(0x212A, 0x212A));
  return set;
}

bool IsLetterOfAscii(char32_t character) {
  return character < 0x80 && absl::ascii_isalpha(static_cast<unsigned char>(character));
}

}  // namespace

absl::StatusOr<CharacterSet> PatternReader::TakeSet(bool ignores_case) {
  return TakeSetItems(ignores_case, 0);
}

// Behind '['.
absl::StatusOr<CharacterSet> PatternReader::TakeSetItems(bool ignores_case, int depth) {
  const size_t begin = at_ - 1;
  if (depth == kMaxDepth) return Refused("sets nested so deep", begin);
  const bool is_negated = Take("^");
  std::optional<CharacterSet> left;  // of the last &&
  CharacterSet items;
  bool is_first = true, is_empty = true;
  while (true) {
    if (at_end()) return Broken("a set without its ]", begin);
    const bool is_intersection = Is("&&");
    if (is_intersection || (Is("]") && !is_first)) {
      if (is_empty) return Refused("an intersection (&&) with nothing on one side", at_);
      if (left.has_value()) items = left->And(items);
      if (Take("]")) return is_negated ? items.Complement() : items;
      Take("&&");
      left = std::exchange(items, CharacterSet());
      is_empty = true;
      continue;
    }
    CONVENE_ASSIGN_OR_RETURN(const CharacterSet one, TakeOneOfSet(ignores_case, is_first, depth));
    items = items.Or(one);
    is_first = is_empty = false;
  }
}

absl::StatusOr<CharacterSet> PatternReader::TakeOneOfSet(bool ignores_case, bool is_first,
                                                         int depth) {
  const size_t begin = at_;
  if (Is("--") || Is("~~")) return Refused("a difference of sets, or a doubled - or ~", begin);
  PatternItem item;
  if (Is("[:")) {
    std::optional<PatternItem> posix = TakePosixSet();
    if (!posix.has_value()) return Refused("[: within a set that begins no known [:name:]", begin);
    item = *std::move(posix);
  } else if (Take("[")) {
    return TakeSetItems(ignores_case, depth + 1);
  } else if (Is("-")) {
    // Itself at the edges, and behind a range, which TakeRange has eaten.
    Take("-");
    if (!is_first && !Is("]") && !is_behind_range_) {
      return Refused("a - that stands neither at the set's edge nor between two characters", begin);
    }
    item.character = '-';
    if (Is("-") && !Is("-]")) return Refused("a range that begins with -", begin);
  } else {
    CONVENE_ASSIGN_OR_RETURN(item, TakeSetCharacter());
    if (item.character.has_value() && Is("-") && !Is("-]")) {
      is_behind_range_ = true;
      return TakeRange(item, begin, ignores_case);
    }
  }
  is_behind_range_ = false;
  if (ignores_case) return InAnyCase(item);
  return item.character.has_value() ? CharacterSet::Of(*item.character, *item.character) : item.set;
}

absl::StatusOr<PatternItem> PatternReader::TakeSetCharacter() {
  if (!Take("\\")) return PatternItem{.character = TakeCharacter()};
  if (Take("b")) return PatternItem{.character = '\b'};
  return TakeEscape(/*in_set=*/true);
}

// Behind its first character.
absl::StatusOr<CharacterSet> PatternReader::TakeRange(PatternItem low, size_t begin,
                                                      bool ignores_case) {
  Take("-");
  if (at_end() || Is("[") || Is("-") || Is("&&"))
    return Refused("a range that ends in a set or in -, or a difference of sets", begin);
  CONVENE_ASSIGN_OR_RETURN(const PatternItem high, TakeSetCharacter());
  if (!high.character.has_value()) return Broken("a range that ends in a set", begin);
  if (*high.character < *low.character) return Broken("a range from high to low", begin);
  if (ignores_case) return RangeInAnyCase(*low.character, *high.character, begin);
  return CharacterSet::Of(*low.character, *high.character);
}

// At "[:".
std::optional<PatternItem> PatternReader::TakePosixSet() {
  const size_t end = regex_.find(":]", at_ + 2);
  if (end == absl::string_view::npos) return std::nullopt;
  absl::string_view name = regex_.substr(at_ + 2, end - at_ - 2);
  const bool is_negated = !name.empty() && name[0] == '^';
  if (is_negated) name.remove_prefix(1);
  std::optional<NamedSet> found = FindPosixSet(name, rules_);
  if (!found.has_value()) return std::nullopt;
  at_ = end + 2;
  return PatternItem{.set = is_negated ? found->set.Complement() : found->set,
                     .is_without_case = found->is_without_case};
}

absl::StatusOr<CharacterSet> PatternReader::InAnyCase(const PatternItem& item) const {
  if (item.character.has_value()) {
    return RangeInAnyCase(*item.character, *item.character, at_);
  }
  if (!item.is_without_case) return Refused("within (?i) a named set that tells cases apart", at_);
  return item.set;
}

absl::StatusOr<CharacterSet> PatternReader::RangeInAnyCase(char32_t first, char32_t last,
                                                           size_t begin) const {
  CharacterSet set = CharacterSet::Of(first, last);
  for (char32_t character = first; character <= last; ++character) {
    if (IsLetterOfAscii(character)) {
      set = set.Or(LetterInAnyCase(static_cast<char>(character)));
    } else if (character >= 0x80 && MayHaveCase(character)) {
      return Refused("within (?i) a letter or mark beyond ASCII that has cases, or may join others",
                     begin);
    }
  }
  return set;
}

}  // namespace convene::worker
