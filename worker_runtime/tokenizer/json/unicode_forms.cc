#include "worker_runtime/tokenizer/json/normalizer_steps.h"
#include "worker_runtime/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace convene::worker {
namespace {

constexpr char32_t kCharacters = 0x110000;

// Characters that have a compatibility decomposition, but came after Unicode 9, which the crate of
// Hugging Face's tokenizers knows (unicode-normalization-alignments 0.1.12): it leaves them alone.
// Found by comparing each character's NFKC and NFKD with theirs.
constexpr char32_t kTooNew[][2] = {
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x11938, 0x11938}, {0x1E030, 0x1E06D},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

// Marks that came after Unicode 9: to the crate they are no marks, so that it moves none of them,
// and none over them. Found by what it makes of each beside a mark of another class; ascending.
constexpr char32_t kTooNewMarks[][2] = {
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
    {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

template <size_t kCount>
bool IsIn(const char32_t (&ranges)[kCount][2], char32_t code) {
  return code >= ranges[0][0] &&
         std::any_of(std::begin(ranges), std::end(ranges), [code](const char32_t(&range)[2]) {
           return range[0] <= code && code <= range[1];
         });
}

bool IsSurrogate(char32_t code) { return 0xD800 <= code && code <= 0xDFFF; }

// Appends the decomposition of `code`.
void Decompose(char32_t code, int options, std::vector<utf8proc_int32_t>* result) {
  if (IsIn(kTooNew, code)) {
    result->push_back(static_cast<utf8proc_int32_t>(code));
    return;
  }
  // Unicode's longest decomposition has 18 characters.
  utf8proc_int32_t characters[32];
  int last_boundary_class = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), characters, 32,
                              static_cast<utf8proc_option_t>(options), &last_boundary_class);
  if (count < 0 || count > 32) {
    result->push_back(static_cast<utf8proc_int32_t>(code));
  } else {
    result->insert(result->end(), characters, characters + count);
  }
}

class UnicodeFormStep : public NormalizerStep {
 public:
  UnicodeFormStep(UnicodeForm form, UnicodeMarks marks) : marks_(marks) {
    is_composing_ = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
    const bool is_compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
    options_ = UTF8PROC_STABLE | (is_composing_ ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
               (is_compatible ? UTF8PROC_COMPAT : 0);
    first_changeable_byte_ = form == UnicodeForm::kNfc ? 0xCC : 0xC2;  // U+0300, U+0080
    FillInert();
  }

  bool Leaves(absl::string_view text) const override {
    size_t at = 0;
    while (true) {
      while (at < text.size() && static_cast<unsigned char>(text[at]) < first_changeable_byte_) {
        ++at;
      }
      if (at == text.size()) return true;
      const Character character = CharacterAt(text, at);
      if (!IsInert(character.code)) return false;
      at += character.bytes;
    }
  }

  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    if (at_start > 0 && at_start < text.size()) {
      std::string head;
      AppendForm(text.substr(0, at_start), &head);
      AppendForm(text, result);
      return std::min(head.size(), result->size());
    }
    AppendForm(text, result);
    return at_start == 0 ? 0 : result->size();
  }

 private:
  // An inert character stays as it is and has nothing to do with those before it, so that a text
  // may be cut before it.
  bool IsInert(char32_t code) const { return (inert_[code / 64] >> (code % 64) & 1) != 0; }

  // A mark that is too new has 0, which makes it inert: it begins a stretch, before whose marks
  // Compose finds nothing to join them with.
  int CombiningClass(utf8proc_int32_t code) const {
    const int known = utf8proc_get_property(code)->combining_class;
    if (known == 0 || marks_ == UnicodeMarks::kOfUnicode15) return known;
    return IsIn(kTooNewMarks, static_cast<char32_t>(code)) ? 0 : known;
  }

  void FillInert() {
    inert_.assign(kCharacters / 64, 0);
    std::vector<bool> follows(kCharacters, false);  // may be composed with a character before it
    std::vector<utf8proc_int32_t> parts;
    for (char32_t code = 0; code < kCharacters; ++code) {
      if (IsSurrogate(code)) continue;
      parts.clear();
      Decompose(code, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &parts);
      for (size_t i = 1; i < parts.size(); ++i) follows[parts[i]] = true;
    }
    for (char32_t code = 0; code < kCharacters; ++code) {
      if (IsSurrogate(code) || CombiningClass(code) != 0) continue;
      if (is_composing_ && follows[code]) continue;
      parts.clear();
      Decompose(code, options_, &parts);
      Compose(&parts);
      if (parts.size() == 1 && parts[0] == static_cast<utf8proc_int32_t>(code)) {
        inert_[code / 64] |= uint64_t{1} << (code % 64);
      }
    }
  }

  void Compose(std::vector<utf8proc_int32_t>* characters) const {
    if (!is_composing_ || characters->size() < 2) return;
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(characters->data(), static_cast<int64_t>(characters->size()),
                                 static_cast<utf8proc_option_t>(options_));
    if (count >= 0) characters->resize(static_cast<size_t>(count));
  }

  // Appends the form of `text`: copies inert characters, rewrites the others, each stretch of them
  // together with the inert character before it.
  void AppendForm(absl::string_view text, std::string* result) const {
    size_t copied = 0;
    size_t previous = 0;  // where the character before `at` begins
    for (size_t at = 0; at < text.size();) {
      Character character = CharacterAt(text, at);
      if (IsInert(character.code)) {
        previous = at;
        at += character.bytes;
        continue;
      }
      size_t end = at;
      do {
        end += character.bytes;
        if (end == text.size()) break;
        character = CharacterAt(text, end);
      } while (!IsInert(character.code));
      result->append(text.data() + copied, previous - copied);
      Rewrite(text.substr(previous, end - previous), result);
      copied = previous = at = end;
    }
    result->append(text.data() + copied, text.size() - copied);
  }

  void Rewrite(absl::string_view text, std::string* result) const {
    std::vector<utf8proc_int32_t> characters;
    for (size_t at = 0; at < text.size();) {
      const Character character = CharacterAt(text, at);
      Decompose(character.code, options_, &characters);
      at += character.bytes;
    }
    // The canonical order of each run of marks. utf8proc's own sort takes squared time.
    for (auto run = characters.begin(); run != characters.end();) {
      if (CombiningClass(*run) == 0) {
        ++run;
        continue;
      }
      const auto end = std::find_if(run, characters.end(), [this](utf8proc_int32_t code) {
        return CombiningClass(code) == 0;
      });
      std::stable_sort(run, end, [this](utf8proc_int32_t a, utf8proc_int32_t b) {
        return CombiningClass(a) < CombiningClass(b);
      });
      run = end;
    }
    Compose(&characters);
    for (const utf8proc_int32_t code : characters) {
      AppendCharacter(static_cast<char32_t>(code), result);
    }
  }

  const UnicodeMarks marks_;
  bool is_composing_ = false;
  int options_ = 0;
  unsigned char first_changeable_byte_ = 0;
  std::vector<uint64_t> inert_;  // one bit a character
};

}  // namespace

std::unique_ptr<NormalizerStep> MakeUnicodeForm(UnicodeForm form, UnicodeMarks marks) {
  return std::make_unique<UnicodeFormStep>(form, marks);
}

}  // namespace convene::worker
