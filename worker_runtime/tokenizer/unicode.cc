#include "worker_runtime/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <map>

#include "absl/types/span.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/unicode_changes.h"

namespace convene::worker {
namespace {

constexpr size_t kBlockSize = 256;
constexpr char32_t kCharacters = 0x110000;
// No character is assigned in planes 4 to 13.
constexpr char32_t kFirstEmptyPlane = 0x40000;
constexpr char32_t kEndOfEmptyPlanes = 0xE0000;

// Sets of General_Category, a bit for each.
constexpr uint32_t From(int first, int last) { return (2u << last) - (1u << first); }

constexpr uint32_t kLetters = From(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
constexpr uint32_t kMarks = From(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
constexpr uint32_t kNumbers = From(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
constexpr uint32_t kPunctuationAndSymbols = From(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_SO);
constexpr uint32_t kOtherLetters = From(UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LO);
constexpr uint32_t kUpper = From(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LU) |
                            From(UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LT) | kOtherLetters |
                            kMarks;
constexpr uint32_t kLower =
    From(UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LL) | kOtherLetters | kMarks;
constexpr uint32_t kWord = kLetters | kMarks | From(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL) |
                           From(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PC);
constexpr uint32_t kCased = From(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LM);
constexpr uint32_t kControl = From(UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF) |
                              From(UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_CO);

bool IsIn(char32_t character, uint32_t categories) {
  return (categories >> utf8proc_category(static_cast<utf8proc_int32_t>(character)) & 1) != 0;
}

// The names of utf8proc's categories, in their order.
constexpr absl::string_view kCategoryNames =
    "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";

// A character's kinds but for those of spaces, by its category.
uint8_t KindOfCategory(uint32_t category) {
  const uint32_t bit = 1u << category;
  uint8_t kind = 0;
  if ((bit & kLetters) != 0) kind |= Kind::kLetter;
  if ((bit & kNumbers) != 0) kind |= Kind::kNumber;
  if ((bit & kMarks) != 0) kind |= Kind::kMark;
  if ((bit & kPunctuationAndSymbols) != 0) kind |= Kind::kPunctuationOrSymbol;
  if ((bit & kUpper) != 0) kind |= Kind::kUpper;
  if ((bit & kLower) != 0) kind |= Kind::kLower;
  return kind;
}

uint8_t KindOf(char32_t character) {
  uint8_t kind = KindOfCategory(utf8proc_category(static_cast<utf8proc_int32_t>(character)));
  if (IsWhiteSpace(character)) kind |= Kind::kSpace;
  if (character == '\r' || character == '\n') kind |= Kind::kNewline;
  return kind;
}

bool IsBetween(char32_t code, char32_t first, char32_t last) {
  return first <= code && code <= last;
}

}  // namespace

bool IsWhiteSpace(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

bool IsWordCharacter(char32_t character) {
  if (IsIn(character, kWord)) return true;
  // Other_Alphabetic outside of letters, marks and Nl: circled and squared letters. Then the
  // joiners.
  return IsBetween(character, 0x24B6, 0x24E9) || IsBetween(character, 0x1F130, 0x1F149) ||
         IsBetween(character, 0x1F150, 0x1F169) || IsBetween(character, 0x1F170, 0x1F189) ||
         character == 0x200C || character == 0x200D;
}

bool IsDecimalDigit(char32_t character) {
  if (IsIn(character, From(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND))) return true;
  const absl::Span<const UnicodeChange> changes = UnicodeChangesOf("Nd");
  return std::any_of(changes.begin(), changes.end(), [character](const UnicodeChange& change) {
    return change.is_added && IsBetween(character, change.first, change.last);
  });
}

bool IsWordOfOniguruma(char32_t character) {
  if (character == 0x200C || character == 0x200D) return false;
  return IsWordCharacter(character) || IsDecimalDigit(character) ||
         (KindTable::Get().Of(character) & (Kind::kLetter | Kind::kMark)) != 0 ||
         IsBetween(character, 0xB2, 0xB3) || character == 0xB9 || IsBetween(character, 0xBC, 0xBE);
}

bool IsNonspacingMark(char32_t character) {
  return IsIn(character, From(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN));
}

bool HasChangedCharacter(absl::string_view text) {
  constexpr char32_t kEnd = 0x33400;  // what changed is below it
  static const auto* const changed = [] {
    auto* const bits = new std::bitset<kEnd>();
    for (const UnicodeChange& change : AllUnicodeChanges()) {
      for (char32_t code = change.first; code <= change.last; ++code) bits->set(code);
    }
    return bits;
  }();
  const char* place = text.data();
  const char* const end = place + text.size();
  while (place < end) {
    if (static_cast<unsigned char>(*place) < 0x80) {
      ++place;
      continue;
    }
    const char32_t code = NextOfValid(&place, end);
    if (code < kEnd && (*changed)[code]) return true;
  }
  return false;
}

bool MayHaveCase(char32_t character) {
  const auto code = static_cast<utf8proc_int32_t>(character);
  return utf8proc_tolower(code) != code || utf8proc_toupper(code) != code ||
         IsIn(character, kCased | kMarks);
}

bool IsControl(char32_t character) { return IsIn(character, kControl); }

void AppendLowercase(char32_t character, std::string* text) {
  if (character == 0x130) {
    text->append("i\xCC\x87");
    return;
  }
  AppendCharacter(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
                  text);
}

const KindTable& KindTable::Get() {
  static const auto* const table = new KindTable();
  return *table;
}

KindTable::KindTable() {
  using Block = std::array<uint8_t, kBlockSize>;
  std::map<Block, uint32_t> known;
  const auto offset_of = [this, &known](const Block& block) {
    const auto [place, is_new] = known.emplace(block, static_cast<uint32_t>(kinds_.size()));
    if (is_new) kinds_.insert(kinds_.end(), block.begin(), block.end());
    return place->second;
  };
  std::map<char32_t, uint8_t> changed;
  for (const UnicodeChange& change : AllUnicodeChanges()) {
    const size_t category = kCategoryNames.find(change.property);
    if (!change.is_added || category == absl::string_view::npos) continue;
    for (char32_t character = change.first; character <= change.last; ++character) {
      changed[character] = KindOfCategory(static_cast<uint32_t>(category / 2));
    }
  }
  block_of_.reserve(kCharacters / kBlockSize);
  for (char32_t first = 0; first < kCharacters; first += kBlockSize) {
    Block block = {};
    if (first < kFirstEmptyPlane || first >= kEndOfEmptyPlanes) {
      for (char32_t i = 0; i < kBlockSize; ++i) block[i] = KindOf(first + i);
    }
    for (auto change = changed.lower_bound(first);
         change != changed.end() && change->first < first + kBlockSize; ++change) {
      block[change->first - first] = change->second;
    }
    block_of_.push_back(offset_of(block));
  }
}

size_t SpaceBegin(absl::string_view text, size_t bound, size_t end) {
  while (end > bound) {
    const size_t previous = PreviousCharacter(text, end);
    if (previous < bound || !IsWhiteSpace(CharacterAt(text, previous).code)) break;
    end = previous;
  }
  return end;
}

size_t SpaceEnd(absl::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Character character = CharacterAt(text, begin);
    if (!IsWhiteSpace(character.code)) break;
    begin += character.bytes;
  }
  return begin;
}

size_t ValidUtf8Prefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Eight bytes of ASCII at a time.
    while (at + 8 <= text.size()) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Character character = FirstCharacter(text.substr(at));
    if (!character.is_valid) return at;
    at += character.length;
  }
  return at;
}

void AppendAsUtf8(absl::string_view text, Replacement replacement, std::string* result) {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    result->append(text.data(), valid);
    text.remove_prefix(valid);
    if (text.empty()) return;
    const size_t invalid = replacement == Replacement::kEachByte ? 1 : FirstCharacter(text).length;
    result->append(kReplacementCharacter.data(), kReplacementCharacter.size());
    text.remove_prefix(invalid);
  }
}

absl::string_view ValidUtf8(absl::string_view bytes, std::string* repaired) {
  if (IsUtf8(bytes)) return bytes;
  repaired->clear();
  AppendAsUtf8(bytes, Replacement::kMaximalSubpart, repaired);
  return *repaired;
}

void AppendCharacter(char32_t character, std::string* result) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  result->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

}  // namespace convene::worker
