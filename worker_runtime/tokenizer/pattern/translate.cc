#include "worker_runtime/tokenizer/pattern/translate.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/pattern/character_set.h"
#include "worker_runtime/tokenizer/pattern/pattern_reader.h"
#include "worker_runtime/tokenizer/pattern/properties.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxRepeat = 65535;  // PCRE2's

struct Flags {
  bool ignores_case = false;
  bool dot_is_all = false;
  bool ends_are_of_lines = false;  // ^ and $ match at each line
};

// A part of the pattern.
struct Part {
  std::string regex = "";
  bool may_be_empty = false;
  bool takes_quantifier = true;
};

struct Quantifier {
  std::string regex;  // as for PCRE2, without what follows it
  bool is_interval = false;
  bool is_exact = false;  // {n}
  bool is_many = false;   // more than once
  bool may_be_none = false;
};

class Translator {
 public:
  Translator(absl::string_view regex, const PatternRules& rules) : reader_(regex, rules) {}

  absl::StatusOr<std::string> Run() {
    Flags flags = {.ends_are_of_lines = !reader_.is_rust()};
    CONVENE_ASSIGN_OR_RETURN(const Part whole, TakeAlternatives(flags, 0));
    if (!reader_.at_end()) return reader_.Broken("a ) without its (", reader_.at());
    return whole.regex;
  }

 private:
  absl::StatusOr<Part> TakeAlternatives(Flags flags, int depth);
  absl::StatusOr<Part> TakeSequence(Flags* flags, bool is_first, int depth);
  // Absent: something that stands for nothing, such as a comment.
  absl::StatusOr<std::optional<Part>> TakeAtom(Flags* flags, bool may_set_flags, int depth);
  absl::StatusOr<std::optional<Part>> TakeGroup(Flags* flags, bool may_set_flags, int depth);
  absl::StatusOr<Part> TakeGroupBody(absl::string_view opening, Flags flags, int depth);
  absl::StatusOr<std::optional<Part>> TakeFlags(Flags* flags, bool may_set_flags, int depth);
  absl::Status TakeGroupName(absl::string_view end);
  absl::StatusOr<Part> TakeEscape(const Flags& flags);
  absl::StatusOr<Part> Literal(const PatternItem& item, const Flags& flags);
  absl::StatusOr<std::optional<Quantifier>> TakeQuantifier();
  absl::StatusOr<std::optional<Quantifier>> TakeInterval();
  absl::Status Quantify(Part* part);

  PatternReader reader_;
  char last_folded_ = 0;  // the last letter, in small, that (?i) reached
};

absl::StatusOr<Part> Translator::TakeAlternatives(Flags flags, int depth) {
  if (depth == kMaxDepth) return reader_.Refused("groups nested so deep", reader_.at());
  Part all;
  bool is_first = true;
  // Oniguruma joins the letters of "s(?:s)" as it does those of "ss".
  const char before = last_folded_;
  do {
    last_folded_ = before;
    CONVENE_ASSIGN_OR_RETURN(const Part one, TakeSequence(&flags, is_first, depth));
    absl::StrAppend(&all.regex, is_first ? "" : "|", one.regex);
    all.may_be_empty |= one.may_be_empty;
    is_first = false;
  } while (reader_.Take("|"));
  return all;
}

absl::StatusOr<Part> Translator::TakeSequence(Flags* flags, bool is_first, int depth) {
  Part sequence = {.may_be_empty = true};
  // Flags hold for the rest of the group, all further alternatives too; what Oniguruma has in other
  // ways unless they stand at the group's begin.
  bool is_begin = is_first;
  while (!reader_.at_end() && !reader_.Is("|") && !reader_.Is(")")) {
    CONVENE_ASSIGN_OR_RETURN(std::optional<Part> atom,
                             TakeAtom(flags, is_begin || reader_.is_rust(), depth));
    if (!atom.has_value()) continue;
    is_begin = false;
    CONVENE_RETURN_IF_ERROR(Quantify(&*atom));
    sequence.regex += atom->regex;
    sequence.may_be_empty &= atom->may_be_empty;
  }
  return sequence;
}

absl::StatusOr<std::optional<Part>> Translator::TakeAtom(Flags* flags, bool may_set_flags,
                                                         int depth) {
  using Atom = std::optional<Part>;
  const size_t begin = reader_.at();
  const auto edge = [](absl::string_view regex) {
    return Atom({.regex = std::string(regex), .may_be_empty = true, .takes_quantifier = false});
  };
  if (reader_.Take("(")) return TakeGroup(flags, may_set_flags, depth);
  if (reader_.Take("[")) {
    last_folded_ = 0;
    CONVENE_ASSIGN_OR_RETURN(const CharacterSet set, reader_.TakeSet(flags->ignores_case));
    return Atom({.regex = set.Regex()});
  }
  if (reader_.Take("\\")) {
    CONVENE_ASSIGN_OR_RETURN(Part part, TakeEscape(*flags));
    return Atom(std::move(part));
  }
  if (reader_.Take(".")) {
    last_folded_ = 0;
    return Atom({.regex = flags->dot_is_all ? "(?s:.)" : "[^\\n]"});
  }
  if (reader_.Take("^")) return edge(flags->ends_are_of_lines ? "(?m:^)" : "\\A");
  if (reader_.Take("$")) return edge(flags->ends_are_of_lines ? "(?m:$)" : "\\z");
  if (reader_.Is("*") || reader_.Is("+") || reader_.Is("?")) {
    return reader_.Broken("a quantifier of nothing", begin);
  }
  CONVENE_ASSIGN_OR_RETURN(const std::optional<Quantifier> interval, TakeInterval());
  if (interval.has_value()) return reader_.Refused("a quantifier of nothing", begin);
  CONVENE_ASSIGN_OR_RETURN(Part part, Literal({.character = reader_.TakeCharacter()}, *flags));
  return Atom(std::move(part));
}

absl::StatusOr<std::optional<Part>> Translator::TakeGroup(Flags* flags, bool may_set_flags,
                                                          int depth) {
  const size_t begin = reader_.at() - 1;
  if (reader_.Is("*")) return reader_.Refused("a verb or callout, (*", begin);
  if (!reader_.Take("?")) return TakeGroupBody("(?:", *flags, depth);
  if (reader_.Take("#")) {
    while (!reader_.Take(")")) {
      if (reader_.at_end()) return reader_.Broken("a comment without its )", begin);
      if (reader_.Take("\\")) return reader_.Refused("a backslash in a comment", begin);
      reader_.TakeCharacter();
    }
    return std::optional<Part>();
  }
  for (const absl::string_view kind : {":", ">"}) {
    if (reader_.Take(kind)) return TakeGroupBody(absl::StrCat("(?", kind), *flags, depth);
  }
  for (const absl::string_view kind : {"=", "!", "<=", "<!"}) {
    if (!reader_.Take(kind)) continue;
    CONVENE_ASSIGN_OR_RETURN(Part part, TakeGroupBody(absl::StrCat("(?", kind), *flags, depth));
    part.may_be_empty = true;
    part.takes_quantifier = false;
    return std::optional<Part>(std::move(part));
  }
  const bool is_quoted = !reader_.is_rust() && reader_.Take("'");
  if (is_quoted || reader_.Take("<") || (reader_.is_rust() && reader_.Take("P<"))) {
    CONVENE_RETURN_IF_ERROR(TakeGroupName(is_quoted ? "'" : ">"));
    return TakeGroupBody("(?:", *flags, depth);
  }
  return TakeFlags(flags, may_set_flags, depth);
}

absl::Status Translator::TakeGroupName(absl::string_view end) {
  const size_t begin = reader_.at();
  while (!reader_.Take(end)) {
    if (reader_.at_end()) return reader_.Broken("a group's name without an end", begin);
    const char32_t character = reader_.TakeCharacter();
    const bool is_plain =
        character < 0x80 && (absl::ascii_isalnum(static_cast<char>(character)) || character == '_');
    if (!is_plain) return reader_.Refused("such a group's name", begin);
  }
  return absl::OkStatus();
}

// Behind the opening.
absl::StatusOr<Part> Translator::TakeGroupBody(absl::string_view opening, Flags flags, int depth) {
  const size_t begin = reader_.at();
  CONVENE_ASSIGN_OR_RETURN(Part part, TakeAlternatives(flags, depth + 1));
  if (!reader_.Take(")")) return reader_.Broken("a ( without its )", begin);
  part.regex = absl::StrCat(opening, part.regex, ")");
  return part;
}

// Behind "(?".
absl::StatusOr<std::optional<Part>> Translator::TakeFlags(Flags* flags, bool may_set_flags,
                                                          int depth) {
  const size_t begin = reader_.at() - 2;
  Flags changed = *flags;
  bool sets = true;
  while (!reader_.Is(")") && !reader_.Is(":")) {
    if (reader_.at_end()) return reader_.Broken("a ( without its )", begin);
    if (reader_.Take("-")) {
      sets = false;
    } else if (reader_.Take("i")) {
      changed.ignores_case = sets;
    } else if (reader_.Take("m")) {
      (reader_.is_rust() ? changed.ends_are_of_lines : changed.dot_is_all) = sets;
    } else if (reader_.is_rust() && reader_.Take("s")) {
      changed.dot_is_all = sets;
    } else {
      return reader_.Refused(
          absl::StrCat("the group or flag (?", std::string(reader_.rest().substr(0, 1))), begin);
    }
  }
  if (reader_.Take(":")) {
    CONVENE_ASSIGN_OR_RETURN(Part part, TakeGroupBody("(?:", changed, depth));
    return std::optional<Part>(std::move(part));
  }
  if (!may_set_flags) return reader_.Refused("flags in the middle of a group", begin);
  reader_.Take(")");
  *flags = changed;
  return std::optional<Part>();
}

absl::StatusOr<Part> Translator::TakeEscape(const Flags& flags) {
  const auto edge = [](std::string regex) {
    return Part{.regex = std::move(regex), .may_be_empty = true, .takes_quantifier = false};
  };
  if (reader_.Is("b") || reader_.Is("B")) {
    const std::string word = WordSet(reader_.rules(), /*in_set=*/false).Regex();
    const bool is_edge = reader_.Take("b");
    if (!is_edge) reader_.Take("B");
    return edge(absl::StrCat("(?:(?<=", word, is_edge ? ")(?!" : ")(?=", word, ")|(?<!", word,
                             is_edge ? ")(?=" : ")(?!", word, "))"));
  }
  for (const absl::string_view same : {"A", "z", "Z", "K"}) {
    if (reader_.Take(same)) return edge(absl::StrCat("\\", same));
  }
  if (!reader_.is_rust() && reader_.Take("R")) {
    return Part{.regex = "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"};
  }
  CONVENE_ASSIGN_OR_RETURN(const PatternItem item, reader_.TakeEscape(/*in_set=*/false));
  if (item.character.has_value()) return Literal(item, flags);
  last_folded_ = 0;
  if (flags.ignores_case) {
    CONVENE_ASSIGN_OR_RETURN(const CharacterSet set, reader_.InAnyCase(item));
    return Part{.regex = set.Regex()};
  }
  return Part{.regex = item.set.Regex()};
}

// `item` has a character.
absl::StatusOr<Part> Translator::Literal(const PatternItem& item, const Flags& flags) {
  const char32_t character = *item.character;
  if (!flags.ignores_case) {
    last_folded_ = 0;
    return Part{.regex = CharacterSet::Of(character, character).Regex()};
  }
  const char before = last_folded_;
  last_folded_ = character < 0x80 ? absl::ascii_tolower(static_cast<char>(character)) : '\0';
  if (!reader_.is_rust()) {
    for (const absl::string_view joined : {"ss", "st", "ff", "fi", "fl"}) {
      if (before != joined[0] || last_folded_ != joined[1]) continue;
      return reader_.Refused(
          absl::StrCat("within (?i) the letters '", joined, "', which match one character, too"),
          reader_.at() - 2);
    }
  }
  CONVENE_ASSIGN_OR_RETURN(const CharacterSet set, reader_.InAnyCase(item));
  return Part{.regex = set.Regex()};
}

absl::Status Translator::Quantify(Part* part) {
  const size_t begin = reader_.at();
  CONVENE_ASSIGN_OR_RETURN(const std::optional<Quantifier> quantifier, TakeQuantifier());
  if (!quantifier.has_value()) return absl::OkStatus();
  last_folded_ = 0;
  if (!part->takes_quantifier) return reader_.Refused("a quantifier of an edge", begin);
  if (part->may_be_empty && quantifier->is_many) {
    return reader_.Refused("a repeated group that may match nothing", begin);
  }
  part->may_be_empty |= quantifier->may_be_none;
  part->regex += quantifier->regex;
  const bool is_of_oniguruma = quantifier->is_interval && !reader_.is_rust();
  if (is_of_oniguruma && (reader_.Is("+") || (quantifier->is_exact && reader_.Is("?")))) {
    // Its intervals are not possessive, and {n} not lazy: that is a quantifier of its own.
    const bool is_optional = !reader_.Take("+") && reader_.Take("?");
    part->regex = absl::StrCat("(?:", part->regex, ")", is_optional ? "?" : "+");
    part->may_be_empty |= is_optional;
  } else if (reader_.Take("?")) {
    part->regex += "?";
  } else if (reader_.Take("+")) {
    part->regex += "+";
  }
  const size_t end = reader_.at();
  CONVENE_ASSIGN_OR_RETURN(const std::optional<Quantifier> another, TakeQuantifier());
  if (another.has_value()) return reader_.Refused("a quantifier of a quantifier", end);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Quantifier>> Translator::TakeQuantifier() {
  for (const char kind : {'*', '+', '?'}) {
    const std::string text(1, kind);
    if (!reader_.Take(text)) continue;
    return std::optional<Quantifier>(
        {.regex = text, .is_many = kind != '?', .may_be_none = kind != '+'});
  }
  return TakeInterval();
}

// {n}, {n,}, {n,m}, {,m}. A brace that begins no such thing is itself.
absl::StatusOr<std::optional<Quantifier>> Translator::TakeInterval() {
  const size_t begin = reader_.at();
  const absl::string_view rest = reader_.rest();
  if (!absl::StartsWith(rest, "{") || rest.size() < 2) return std::optional<Quantifier>();
  if (!absl::ascii_isdigit(rest[1]) && rest[1] != ',' && rest[1] != ' ') {
    return std::optional<Quantifier>();
  }
  const absl::string_view inside = rest.substr(1, rest.find('}') - 1);
  const size_t comma = inside.find(',');
  const absl::string_view least_text = inside.substr(0, comma);
  const absl::string_view most_text =
      comma == absl::string_view::npos ? least_text : inside.substr(comma + 1);
  const bool has_least = !least_text.empty(), has_most = !most_text.empty();
  uint32_t least = 0, most = kMaxRepeat;
  const auto reads = [](absl::string_view text, uint32_t* number) {
    return absl::c_all_of(text, absl::ascii_isdigit) && absl::SimpleAtoi(text, number) &&
           *number <= kMaxRepeat;
  };
  if (rest.find('}') == absl::string_view::npos || (!has_least && !has_most) ||
      (has_least && !reads(least_text, &least)) || (has_most && !reads(most_text, &most)) ||
      least > most) {
    return reader_.Refused("a { that begins no number of times", begin);
  }
  reader_.Take(rest.substr(0, inside.size() + 2));
  const bool is_exact = comma == absl::string_view::npos;
  return std::optional<Quantifier>(
      {.regex = is_exact ? absl::StrCat("{", least, "}")
                         : absl::StrCat("{", least, ",", has_most ? absl::StrCat(most) : "", "}"),
       .is_interval = true,
       .is_exact = is_exact,
       .is_many = most > 1,
       .may_be_none = least == 0});
}

}  // namespace

absl::StatusOr<std::string> InWordsOfPcre(absl::string_view regex, const PatternRules& rules) {
  if (!IsUtf8(regex)) return absl::InvalidArgumentError("the split pattern is not UTF-8");
  return Translator(regex, rules).Run();
}

}  // namespace convene::worker
