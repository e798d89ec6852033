#include "worker_runtime/tokenizer/json/normalizer_steps.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/byte_level.h"
#include "worker_runtime/tokenizer/json/text_pattern.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

using Step = std::unique_ptr<NormalizerStep>;

// Calls rewrite(code, bytes of the character, result) for each character.
template <typename Rewrite>
size_t RewriteCharacters(absl::string_view text, size_t at_start, std::string* result,
                         const Rewrite& rewrite) {
  size_t result_at_start = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = CharacterAt(text, at);
    rewrite(character.code, text.substr(at, character.bytes), result);
    if (at < at_start) result_at_start = result->size();
    at += character.bytes;
  }
  return result_at_start;
}

// Rewrites each character by itself.
template <bool (*leaves)(absl::string_view text),
          void (*rewrite)(char32_t code, absl::string_view bytes, std::string* to)>
class CharacterStep : public NormalizerStep {
 public:
  bool Leaves(absl::string_view text) const override { return leaves(text); }
  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    return RewriteCharacters(text, at_start, result, rewrite);
  }
};

bool HasOnlyAsciiWithoutCapitals(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80 && !('A' <= c && c <= 'Z');
  });
}
void Lowercase(char32_t code, absl::string_view /*bytes*/, std::string* to) {
  AppendLowercase(code, to);
}

// Marks (M*) go, but nothing is decomposed.
void StripAccents(char32_t code, absl::string_view bytes, std::string* to) {
  if ((KindTable::Get().Of(code) & Kind::kMark) == 0) to->append(bytes.data(), bytes.size());
}

bool HasOnlyPrintableAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return ' ' <= c && c < 0x7F; });
}
bool NmtDrops(char32_t code) {
  return (0x01 <= code && code <= 0x08) || code == 0x0B || (0x0E <= code && code <= 0x1F) ||
         code == 0x7F || code == 0x8F || code == 0x9F;
}

bool NmtMakesSpace(char32_t code) {
  return code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
         (0x200B <= code && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
         code == 0xFEFF || code == 0xFFFD;
}
// Control characters go, other white space and U+2581 become a space.
void Nmt(char32_t code, absl::string_view bytes, std::string* to) {
  if (NmtDrops(code)) return;
  if (NmtMakesSpace(code)) bytes = " ";
  to->append(bytes.data(), bytes.size());
}

// White space at the ends goes.
class Strip : public NormalizerStep {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  bool Leaves(absl::string_view text) const override {
    const TextRange kept = Kept(text);
    return kept.begin == 0 && kept.end == text.size();
  }
  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    const TextRange kept = Kept(text);
    result->append(text.data() + kept.begin, kept.end - kept.begin);
    return std::min(at_start - std::min(at_start, kept.begin), result->size());
  }

 private:
  TextRange Kept(absl::string_view text) const {
    const size_t begin = left_ ? SpaceEnd(text, 0) : 0;
    return {begin, right_ ? SpaceBegin(text, begin, text.size()) : text.size()};
  }

  const bool left_, right_;
};

// Puts `text` before every text that is not empty.
class Prepend : public NormalizerStep {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}

  bool Leaves(absl::string_view text) const override { return text.empty(); }
  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    result->append(text_);
    result->append(text.data(), text.size());
    return at_start == 0 ? 0 : at_start + text_.size();
  }

 private:
  const std::string text_;
};

// Puts `content` in place of every match.
class Replace : public NormalizerStep {
 public:
  Replace(std::unique_ptr<SplitPattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  // Looking for the matches twice would cost more than the copy.
  bool Leaves(absl::string_view text) const override { return text.empty(); }

  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    std::vector<TextRange> buffer;
    size_t copied = 0;
    size_t result_at_start = 0;
    const auto copy_until = [&](size_t end) {
      if (copied < at_start) {
        result_at_start = result->size() + std::min(end, at_start) - copied;
      }
      result->append(text.data() + copied, end - copied);
    };
    pattern_->ForEach(text, &buffer, [&](const TextRange& match) {
      copy_until(match.begin);
      result->append(content_);
      // The new text belongs to the match's last character.
      if (match.end <= at_start) result_at_start = result->size();
      copied = match.end;
    });
    copy_until(text.size());
    return result_at_start;
  }
  size_t growth() const override { return std::max(content_.size(), size_t{1}); }

 private:
  const std::unique_ptr<SplitPattern> pattern_;
  const std::string content_;
};

// Spells bytes as GPT-2 does.
class ByteLevelNormalizer : public NormalizerStep {
 public:
  bool Leaves(absl::string_view text) const override { return text.empty(); }
  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    AppendSpelled(text.substr(0, at_start), result);
    const size_t result_at_start = result->size();
    AppendSpelled(text.substr(at_start), result);
    return result_at_start;
  }
};

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

// The blocks of ideographs that BERT puts between spaces.
bool IsIdeograph(char32_t code) {
  constexpr char32_t kBlocks[][2] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF},
                                     {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF},
                                     {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks), [code](const char32_t(&block)[2]) {
    return block[0] <= code && code <= block[1];
  });
}

class Bert : public NormalizerStep {
 public:
  explicit Bert(const BertOptions& options)
      : options_(options), decompose_(MakeUnicodeForm(UnicodeForm::kNfd)) {}

  bool Leaves(absl::string_view) const override { return false; }

  size_t Apply(absl::string_view text, size_t at_start, std::string* result) const override {
    std::string spaced;
    at_start = RewriteCharacters(text, at_start, &spaced,
                                 [this](char32_t code, absl::string_view bytes, std::string* to) {
                                   CleanAndSpace(code, bytes, to);
                                 });
    std::string decomposed;
    if (options_.strip_accents) {
      at_start = decompose_->Apply(spaced, at_start, &decomposed);
    } else {
      decomposed = std::move(spaced);
    }
    return RewriteCharacters(decomposed, at_start, result,
                             [this](char32_t code, absl::string_view bytes, std::string* to) {
                               if (options_.strip_accents && IsNonspacingMark(code)) return;
                               if (options_.lowercase) {
                                 AppendLowercase(code, to);
                               } else {
                                 to->append(bytes.data(), bytes.size());
                               }
                             });
  }

 private:
  void CleanAndSpace(char32_t code, absl::string_view bytes, std::string* to) const {
    if (options_.clean_text) {
      // Tabs and line ends are control characters, but count as spaces here.
      const bool is_line_space = code == '\t' || code == '\n' || code == '\r';
      if (code == 0 || code == 0xFFFD || (IsControl(code) && !is_line_space)) return;
      if (IsWhiteSpace(code)) bytes = " ";
    }
    const bool is_spaced = options_.handle_chinese_chars && IsIdeograph(code);
    if (is_spaced) to->push_back(' ');
    to->append(bytes.data(), bytes.size());
    if (is_spaced) to->push_back(' ');
  }

  const BertOptions options_;
  const std::unique_ptr<NormalizerStep> decompose_;
};

absl::StatusOr<Step> ReadBert(const JsonNode& node) {
  BertOptions options;
  CONVENE_ASSIGN_OR_RETURN(options.clean_text, node.GetBool("clean_text", true));
  CONVENE_ASSIGN_OR_RETURN(options.handle_chinese_chars,
                           node.GetBool("handle_chinese_chars", true));
  CONVENE_ASSIGN_OR_RETURN(options.lowercase, node.GetBool("lowercase", true));
  CONVENE_ASSIGN_OR_RETURN(options.strip_accents, node.GetBool("strip_accents", options.lowercase));
  return std::make_unique<Bert>(options);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadReplace(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> pattern, ReadPattern(pattern_node));
  CONVENE_ASSIGN_OR_RETURN(std::string content, node.GetString("content"));
  // Newer versions put groups in place of $1, older ones do not.
  if (pattern_node.Find("Regex").has_value() && content.find('$') != std::string::npos) {
    return LacksFeature(node.place(), "\"Replace\" with $ in its \"content\"");
  }
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}

absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadNormalizerStep(const std::string& type,
                                                                   const JsonNode& node) {
  if (type == "NFC") return MakeUnicodeForm(UnicodeForm::kNfc);
  if (type == "NFD") return MakeUnicodeForm(UnicodeForm::kNfd);
  if (type == "NFKC") return MakeUnicodeForm(UnicodeForm::kNfkc);
  if (type == "NFKD") return MakeUnicodeForm(UnicodeForm::kNfkd);
  if (type == "Lowercase") {
    return std::make_unique<CharacterStep<HasOnlyAsciiWithoutCapitals, Lowercase>>();
  }
  if (type == "StripAccents") return std::make_unique<CharacterStep<IsAscii, StripAccents>>();
  if (type == "Nmt") return std::make_unique<CharacterStep<HasOnlyPrintableAscii, Nmt>>();
  if (type == "Strip") {
    CONVENE_ASSIGN_OR_RETURN(const bool left, node.GetBool("strip_left", true));
    CONVENE_ASSIGN_OR_RETURN(const bool right, node.GetBool("strip_right", true));
    return std::make_unique<Strip>(left, right);
  }
  if (type == "Replace") return ReadReplace(node);
  if (type == "BertNormalizer") return ReadBert(node);
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Prepend") {
    CONVENE_ASSIGN_OR_RETURN(std::string text, node.GetString("prepend"));
    return std::make_unique<Prepend>(std::move(text));
  }
  if (type == "Precompiled") {
    CONVENE_ASSIGN_OR_RETURN(const JsonNode charsmap, node.Get("precompiled_charsmap"));
    return ReadPrecompiled(charsmap);
  }
  return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
}

}  // namespace convene::worker
