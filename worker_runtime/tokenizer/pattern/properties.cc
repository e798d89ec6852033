#include "worker_runtime/tokenizer/pattern/properties.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker_runtime/tokenizer/unicode_changes.h"

namespace convene::worker {
namespace {

struct Category {
  const char* name;
  const char* long_name;
  const char* members;
  bool is_without_case;
};
constexpr Category kCategories[] = {
    {"L", "Letter", "Lu Ll Lt Lm Lo", false},
    {"LC", "Cased_Letter", "Lu Ll Lt", false},
    {"Lu", "Uppercase_Letter", "Lu", false},
    {"Ll", "Lowercase_Letter", "Ll", false},
    {"Lt", "Titlecase_Letter", "Lt", false},
    {"Lm", "Modifier_Letter", "Lm", false},
    {"Lo", "Other_Letter", "Lo", false},
    {"M", "Mark", "Mn Mc Me", false},
    {"Mn", "Nonspacing_Mark", "Mn", false},
    {"Mc", "Spacing_Mark", "Mc", false},
    {"Me", "Enclosing_Mark", "Me", false},
    {"N", "Number", "Nd Nl No", true},
    {"Nd", "Decimal_Number", "Nd", true},
    {"Nl", "Letter_Number", "Nl", true},
    {"No", "Other_Number", "No", true},
    {"P", "Punctuation", "Pc Pd Ps Pe Pi Pf Po", true},
    {"Pc", "Connector_Punctuation", "Pc", true},
    {"Pd", "Dash_Punctuation", "Pd", true},
    {"Ps", "Open_Punctuation", "Ps", true},
    {"Pe", "Close_Punctuation", "Pe", true},
    {"Pi", "Initial_Punctuation", "Pi", true},
    {"Pf", "Final_Punctuation", "Pf", true},
    {"Po", "Other_Punctuation", "Po", true},
    {"S", "Symbol", "Sm Sc Sk So", true},
    {"Sm", "Math_Symbol", "Sm", true},
    {"Sc", "Currency_Symbol", "Sc", true},
    {"Sk", "Modifier_Symbol", "Sk", true},
    {"So", "Other_Symbol", "So", true},
    {"Z", "Separator", "Zs Zl Zp", true},
    {"Zs", "Space_Separator", "Zs", true},
    {"Zl", "Line_Separator", "Zl", true},
    {"Zp", "Paragraph_Separator", "Zp", true},
    {"Cc", "Control", "Cc", true},
    {"Cf", "Format", "Cf", true},
    {"Co", "Private_Use", "Co", true},
};
constexpr absl::string_view kAssigned =
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cs";
constexpr absl::string_view kNotOther =
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp";

constexpr absl::string_view kBinary =
    "Alphabetic Uppercase Lowercase White_Space Emoji Emoji_Presentation Emoji_Modifier "
    "Emoji_Modifier_Base Emoji_Component Extended_Pictographic Ideographic";

// The scripts of Unicode 14: PCRE2 has no others.
constexpr absl::string_view kScripts = R"(
Adlam Ahom Anatolian_Hieroglyphs Arabic Armenian Avestan Balinese Bamum Bassa_Vah Batak Bengali
Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian
Chakma Cham Cherokee Chorasmian Common Coptic Cuneiform Cypriot Cypro_Minoan Cyrillic Deseret
Devanagari Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Georgian
Glagolitic Gothic Grantha Greek Gujarati Gunjala_Gondi Gurmukhi Han Hangul Hanifi_Rohingya
Hanunoo Hatran Hebrew Hiragana Imperial_Aramaic Inherited Inscriptional_Pahlavi
Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khitan_Small_Script
Khmer Khojki Khudawadi Lao Latin Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani
Makasar Malayalam Mandaic Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek
Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi Mongolian Mro Multani Myanmar
Nabataean Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki
Old_Hungarian Old_Italic Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian
Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong Palmyrene Pau_Cin_Hau Phags_Pa Phoenician
Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian Siddham SignWriting Sinhala
Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham
Tai_Viet Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Toto Ugaritic Vai
Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square)";

std::string Loose(absl::string_view name) {
  std::string loose;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') loose.push_back(absl::ascii_tolower(c));
  }
  return loose;
}

std::vector<absl::string_view> Words(absl::string_view list) {
  return absl::StrSplit(list, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

// `property` of PCRE2, with what the newer Unicode changed. `members`: the properties of which it
// is the union, where changes are known of these.
CharacterSet WithChanges(absl::string_view property, absl::string_view members,
                         const PatternRules& rules) {
  const CharacterSet old = CharacterSet::OfProperty(absl::StrCat("\\p{", property, "}"),
                                                    absl::StrCat("\\P{", property, "}"));
  if (!rules.has_changes) return old;
  std::vector<CharacterRange> added, removed;
  for (const absl::string_view member : Words(members)) {
    for (const UnicodeChange& change : UnicodeChangesOf(member)) {
      (change.is_added ? added : removed).push_back({change.first, change.last});
    }
  }
  const CharacterSet all = old.Or(CharacterSet::Of(std::move(added)));
  // A character that left one member came into another of the same union.
  if (removed.empty() || members != property) return all;
  return all.And(CharacterSet::Of(std::move(removed)).Complement());
}

CharacterSet Only(absl::string_view property, const PatternRules& rules) {
  return WithChanges(property, property, rules);
}

// The characters that PCRE2's `property` does not have, and those that came to one of `others`.
CharacterSet Without(absl::string_view property, absl::string_view others,
                     const PatternRules& rules) {
  CharacterSet all = WithChanges(property, "", rules).Complement();
  for (const absl::string_view other : Words(rules.has_changes ? others : "")) {
    std::vector<CharacterRange> added;
    for (const UnicodeChange& change : UnicodeChangesOf(other)) {
      if (change.is_added) added.push_back({change.first, change.last});
    }
    all = all.Or(CharacterSet::Of(std::move(added)));
  }
  return all;
}

CharacterSet Assigned(const PatternRules& rules) { return Without("Cn", kAssigned, rules); }

std::optional<NamedSet> FindCategory(const std::string& loose, const PatternRules& rules) {
  for (const Category& category : kCategories) {
    if (loose != Loose(category.name) && loose != Loose(category.long_name)) continue;
    const absl::string_view base =
        category.name == absl::string_view("LC") ? "L&" : absl::string_view(category.name);
    return NamedSet{WithChanges(base, category.members, rules), category.is_without_case};
  }
  const bool is_other = loose == "c" || loose == "other";
  if (is_other || loose == "cn" || loose == "unassigned") {
    const CharacterSet rest = is_other ? Without("C", kNotOther, rules) : Assigned(rules);
    return NamedSet{rest.Complement(), true};
  }
  return std::nullopt;
}

std::optional<NamedSet> FindScript(const std::string& loose, const PatternRules& rules) {
  for (const absl::string_view script : Words(kScripts)) {
    if (loose == Loose(script)) return NamedSet{Only(absl::StrCat("sc:", script), rules), false};
  }
  return std::nullopt;
}

std::optional<NamedSet> FindBinary(const std::string& loose, const PatternRules& rules) {
  for (const absl::string_view property : Words(kBinary)) {
    if (loose != Loose(property)) continue;
    const bool is_case = property == "Uppercase" || property == "Lowercase";
    return NamedSet{Only(property, rules), !is_case};
  }
  if (loose == "any") return NamedSet{CharacterSet().Complement(), true};
  if (loose == "assigned") return NamedSet{Assigned(rules), true};
  if (loose == "ascii") return NamedSet{CharacterSet::Of(0, 0x7F), false};
  return std::nullopt;
}

CharacterSet Union(std::initializer_list<absl::string_view> names, const PatternRules& rules) {
  CharacterSet all;
  for (const absl::string_view name : names) {
    all = all.Or(FindProperty(name, rules)->set);
  }
  return all;
}

CharacterSet OnigurumaSet(absl::string_view name, const PatternRules& rules) {
  if (name == "alpha") return Union({"Alphabetic"}, rules);
  if (name == "alnum") return Union({"Alphabetic", "Nd"}, rules);
  if (name == "upper") return Union({"Uppercase"}, rules);
  if (name == "lower") return Union({"Lowercase"}, rules);
  if (name == "space") return Union({"White_Space"}, rules);
  if (name == "digit") return Union({"Nd"}, rules);
  if (name == "punct") return Union({"P", "S"}, rules);
  if (name == "cntrl") return Union({"Cc"}, rules);
  if (name == "blank") return Union({"Zs"}, rules).Or(CharacterSet::Of('\t', '\t'));
  if (name == "xdigit") return CharacterSet::Of({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  if (name == "ascii") return CharacterSet::Of(0, 0x7F);
  if (name == "word") return WordSet(rules, /*in_set=*/true);
  const CharacterSet graph =
      Union({"Cc", "White_Space"}, rules).Or(Assigned(rules).Complement()).Complement();
  return name == "graph" ? graph : graph.Or(Union({"Zs"}, rules));
}

struct AsciiSet {
  const char* name;
  std::vector<CharacterRange> ranges;
};

const std::vector<AsciiSet>& AsciiSets() {
  static const auto* const sets = new std::vector<AsciiSet>{
      {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
      {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
      {"upper", {{'A', 'Z'}}},
      {"lower", {{'a', 'z'}}},
      {"space", {{'\t', '\r'}, {' ', ' '}}},
      {"digit", {{'0', '9'}}},
      {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
      {"cntrl", {{0, 0x1F}, {0x7F, 0x7F}}},
      {"blank", {{'\t', '\t'}, {' ', ' '}}},
      {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}},
      {"ascii", {{0, 0x7F}}},
      {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
      {"graph", {{'!', '~'}}},
      {"print", {{' ', '~'}}},
  };
  return *sets;
}

}  // namespace

std::optional<NamedSet> FindProperty(absl::string_view name, const PatternRules& rules) {
  if (rules.dialect == PatternDialect::kRust && absl::StrContains(name, '=')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(name, absl::MaxSplits('=', 1));
    const std::string kind = Loose(parts.first);
    if (kind == "sc" || kind == "script") return FindScript(Loose(parts.second), rules);
    if (kind == "gc" || kind == "generalcategory") return FindCategory(Loose(parts.second), rules);
    return std::nullopt;
  }
  const std::string loose = Loose(name);
  if (std::optional<NamedSet> found = FindCategory(loose, rules)) return found;
  if (std::optional<NamedSet> found = FindBinary(loose, rules)) return found;
  return FindScript(loose, rules);
}

std::optional<NamedSet> FindPosixSet(absl::string_view name, const PatternRules& rules) {
  for (const AsciiSet& known : AsciiSets()) {
    if (known.name != name) continue;
    const bool is_rust = rules.dialect == PatternDialect::kRust;
    // (?i) adds to Rust's letters of ASCII two others, such as U+017F.
    const bool has_case = is_rust ? name != "space" && name != "digit" && name != "punct" &&
                                        name != "cntrl" && name != "blank" && name != "xdigit"
                                  : name == "upper" || name == "lower" || name == "ascii";
    return NamedSet{is_rust ? CharacterSet::Of(known.ranges) : OnigurumaSet(name, rules),
                    !has_case};
  }
  return std::nullopt;
}

CharacterSet WordSet(const PatternRules& rules, bool in_set) {
  const CharacterSet word = Union({"Alphabetic", "M", "Nd", "Pc"}, rules);
  if (rules.dialect == PatternDialect::kRust) return word.Or(CharacterSet::Of(0x200C, 0x200D));
  if (in_set) return word;
  return word.Or(CharacterSet::Of({{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}}));
}

std::vector<std::string> KnownProperties() {
  std::vector<std::string> names = {"Cn", "Unassigned", "C", "Other", "Any", "Assigned", "ASCII"};
  for (const Category& category : kCategories) {
    names.insert(names.end(), {category.name, category.long_name});
  }
  for (const absl::string_view list : {kBinary, kScripts}) {
    for (const absl::string_view name : Words(list)) names.emplace_back(name);
  }
  return names;
}

std::vector<std::string> KnownPosixSets() {
  std::vector<std::string> names;
  for (const AsciiSet& known : AsciiSets()) names.emplace_back(known.name);
  return names;
}

}  // namespace convene::worker
