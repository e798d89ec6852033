#include "worker_runtime/tokenizer/unicode.h"

#include <utf8proc.h>

#include <array>
#include <cstring>
#include <map>

#include "tools/base/text.h"

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
constexpr uint32_t kControl = From(UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF) |
                              From(UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_CO);

bool IsIn(char32_t character, uint32_t categories) {
  return (categories >> utf8proc_category(static_cast<utf8proc_int32_t>(character)) & 1) != 0;
}

uint8_t KindOf(char32_t character) {
  uint8_t kind = 0;
  if (IsWhiteSpace(character)) kind |= Kind::kSpace;
  if (character == '\r' || character == '\n') kind |= Kind::kNewline;
  if (IsIn(character, kLetters)) kind |= Kind::kLetter;
  if (IsIn(character, kNumbers)) kind |= Kind::kNumber;
  if (IsIn(character, kMarks)) kind |= Kind::kMark;
  if (IsIn(character, kPunctuationAndSymbols)) kind |= Kind::kPunctuationOrSymbol;
  if (IsIn(character, kUpper)) kind |= Kind::kUpper;
  if (IsIn(character, kLower)) kind |= Kind::kLower;
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

bool IsNonspacingMark(char32_t character) {
  return IsIn(character, From(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN));
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
  block_of_.reserve(kCharacters / kBlockSize);
  for (char32_t first = 0; first < kCharacters; first += kBlockSize) {
    Block block = {};
    if (first < kFirstEmptyPlane || first >= kEndOfEmptyPlanes) {
      for (char32_t i = 0; i < kBlockSize; ++i) block[i] = KindOf(first + i);
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
