#include "worker_runtime/tokenizer/json/characters.h"

#include <utf8proc.h>

#include <cstdint>

namespace convene::worker {
namespace {

constexpr uint32_t Bit(Category category) { return 1u << static_cast<int>(category); }

uint32_t CategoryBit(char32_t code) { return Bit(CategoryOf(code)); }

constexpr uint32_t kMarks =
    Bit(Category::kNonspacingMark) | Bit(Category::kSpacingMark) | Bit(Category::kEnclosingMark);
constexpr uint32_t kNumbers =
    Bit(Category::kDecimalNumber) | Bit(Category::kLetterNumber) | Bit(Category::kOtherNumber);
constexpr uint32_t kPunctuation =
    Bit(Category::kConnectorPunctuation) | Bit(Category::kDashPunctuation) |
    Bit(Category::kOpenPunctuation) | Bit(Category::kClosePunctuation) |
    Bit(Category::kInitialPunctuation) | Bit(Category::kFinalPunctuation) |
    Bit(Category::kOtherPunctuation);
constexpr uint32_t kLetters = Bit(Category::kUppercaseLetter) | Bit(Category::kLowercaseLetter) |
                              Bit(Category::kTitlecaseLetter) | Bit(Category::kModifierLetter) |
                              Bit(Category::kOtherLetter);
constexpr uint32_t kWord = kLetters | kMarks | Bit(Category::kDecimalNumber) |
                           Bit(Category::kLetterNumber) | Bit(Category::kConnectorPunctuation);
constexpr uint32_t kControl =
    Bit(Category::kControl) | Bit(Category::kFormat) | Bit(Category::kPrivateUse);

bool IsBetween(char32_t code, char32_t first, char32_t last) {
  return first <= code && code <= last;
}

}  // namespace

bool IsWordCharacter(char32_t code) {
  if ((CategoryBit(code) & kWord) != 0) return true;
  // Other_Alphabetic outside of letters, marks and Nl: circled and squared letters. Then the
  // joiners.
  return IsBetween(code, 0x24B6, 0x24E9) || IsBetween(code, 0x1F130, 0x1F149) ||
         IsBetween(code, 0x1F150, 0x1F169) || IsBetween(code, 0x1F170, 0x1F189) || code == 0x200C ||
         code == 0x200D;
}

bool IsNumeric(char32_t code) { return (CategoryBit(code) & kNumbers) != 0; }

bool IsPunctuation(char32_t code) {
  if (code < 0x80) {
    return IsBetween(code, '!', '/') || IsBetween(code, ':', '@') || IsBetween(code, '[', '`') ||
           IsBetween(code, '{', '~');
  }
  return (CategoryBit(code) & kPunctuation) != 0;
}

bool IsMark(char32_t code) { return (CategoryBit(code) & kMarks) != 0; }

bool IsControl(char32_t code) { return (CategoryBit(code) & kControl) != 0; }

bool IsIdeograph(char32_t code) {
  return IsBetween(code, 0x4E00, 0x9FFF) || IsBetween(code, 0x3400, 0x4DBF) ||
         IsBetween(code, 0x20000, 0x2A6DF) || IsBetween(code, 0x2A700, 0x2B73F) ||
         IsBetween(code, 0x2B740, 0x2B81F) || IsBetween(code, 0x2B920, 0x2CEAF) ||
         IsBetween(code, 0xF900, 0xFAFF) || IsBetween(code, 0x2F800, 0x2FA1F);
}

void AppendLowercase(char32_t code, std::string* text) {
  if (code == 0x130) {
    text->append("i\xCC\x87");
    return;
  }
  AppendCharacter(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))),
                  text);
}

absl::string_view ValidUtf8(absl::string_view bytes, std::string* repaired) {
  if (IsUtf8(bytes)) return bytes;
  repaired->clear();
  AppendAsUtf8(bytes, Replacement::kMaximalSubpart, repaired);
  return *repaired;
}

}  // namespace convene::worker
