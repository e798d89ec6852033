#include "worker_runtime/tokenizer/pcre_pattern.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/pattern/translate.h"
#include "worker_runtime/tokenizer/scanners.h"
#include "worker_runtime/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace convene::worker {
namespace {

constexpr uint32_t kMostSteps = 10'000'000;
constexpr size_t kGivenUpBytes = 4096;
constexpr size_t kFirstStack = size_t{32} << 10;
constexpr size_t kLargestStack = size_t{16} << 20;

template <auto free>
struct FreedBy {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, FreedBy<pcre2_compile_context_free>>;
using Code = std::unique_ptr<pcre2_code, FreedBy<pcre2_code_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreedBy<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, FreedBy<pcre2_match_data_free>>;
using Stack = std::unique_ptr<pcre2_jit_stack, FreedBy<pcre2_jit_stack_free>>;

// The end of the character, or of the `bytes` bytes and the character they end in, that begins at
// `at`.
size_t EndOfCharacter(absl::string_view text, size_t at, size_t bytes) {
  size_t end = std::min(text.size(), at + bytes);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return end;
}

class PcrePattern : public SplitPattern {
 public:
  explicit PcrePattern(Code code) : code_(std::move(code)), context_(NewContext()) {}

  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    CONVENE_CHECK(data != nullptr);
    size_t at = begin;
    while (at < text.size() && limit > 0) {
      int found = Match(text, at, data.get(), context_.get());
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = MatchWithStack(text, at, data.get());
      if (found == PCRE2_ERROR_NOMATCH) return text.size();
      if (found < 0) {
        matches->push_back({at, EndOfCharacter(text, at, kGivenUpBytes)});
      } else {
        const size_t* const range = pcre2_get_ovector_pointer(data.get());
        // An empty match, also one that \K made: the search goes on behind the next character.
        if (range[1] <= std::max(range[0], at)) {
          at = EndOfCharacter(text, std::max(range[0], at), 1);
          continue;
        }
        matches->push_back({std::max(range[0], at), range[1]});
      }
      at = matches->back().end;
      --limit;
    }
    return at;
  }

 private:
  static MatchContext NewContext() {
    MatchContext context(pcre2_match_context_create(nullptr));
    CONVENE_CHECK(context != nullptr);
    pcre2_set_match_limit(context.get(), kMostSteps);
    return context;
  }

  int Match(absl::string_view text, size_t at, pcre2_match_data* data,
            pcre2_match_context* context) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK, data, context);
  }

  // The machine code has 32 KiB of the thread's stack unless it is given one, which costs a mapping
  // of memory: only where that is not enough.
  int MatchWithStack(absl::string_view text, size_t at, pcre2_match_data* data) const {
    const MatchContext context = NewContext();
    const Stack stack(pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    return Match(text, at, data, context.get());
  }

  const Code code_;
  const MatchContext context_;  // only read by a match
};

// The sets of one pattern have all that Unicode 16 changed, a hundred ranges of characters that
// hardly any text has; those of the other have not.
class PatternOfTwo : public SplitPattern {
 public:
  PatternOfTwo(std::unique_ptr<SplitPattern> whole, std::unique_ptr<SplitPattern> fast)
      : whole_(std::move(whole)), fast_(std::move(fast)) {}

  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    return whole_->FindSome(text, begin, limit, matches);
  }
  const SplitPattern& For(absl::string_view text) const override {
    return HasChangedCharacter(text) ? *whole_ : *fast_;
  }

 private:
  const std::unique_ptr<SplitPattern> whole_, fast_;
};

// `words` for PCRE2; `regex` for people.
absl::StatusOr<std::unique_ptr<SplitPattern>> Compile(const std::string& words,
                                                      const std::string& regex) {
  const CompileContext compile_context(pcre2_compile_context_create(nullptr));
  CONVENE_CHECK(compile_context != nullptr);
  pcre2_set_newline(compile_context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(words.data()), words.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place,
                          compile_context.get()));
  if (code == nullptr) {
    std::string message(256, '\0');
    const int length =
        pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(&message[0]), message.size());
    message.resize(static_cast<size_t>(std::max(length, 0)));
    return absl::UnimplementedError(absl::StrCat(
        "the split pattern ", Utf8(regex, 300), " cannot be run by PCRE2: ", message, ", at byte ",
        place, " of ", Utf8(absl::string_view(words).substr(place > 100 ? place - 100 : 0), 200)));
  }
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) {
    return absl::UnimplementedError(
        absl::StrCat("the split pattern ", Utf8(regex, 300),
                     " may match the empty text: other programs cut there, which this one cannot"));
  }
  // Without machine code, where the system forbids it, PCRE2 interprets: slower, the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return std::make_unique<PcrePattern>(std::move(code));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SplitPattern>> MakePcrePattern(const std::string& regex,
                                                              PatternDialect dialect) {
  CONVENE_ASSIGN_OR_RETURN(const std::string words, InWordsOfPcre(regex, {.dialect = dialect}));
  CONVENE_ASSIGN_OR_RETURN(const std::string fast_words,
                           InWordsOfPcre(regex, {.dialect = dialect, .has_changes = false}));
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> whole, Compile(words, regex));
  if (fast_words == words) return whole;
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> fast, Compile(fast_words, regex));
  return std::make_unique<PatternOfTwo>(std::move(whole), std::move(fast));
}

absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const std::string& regex,
                                                               PatternDialect dialect) {
  if (std::unique_ptr<SplitPattern> scanner = MakeScanner(regex, dialect)) return scanner;
  return MakePcrePattern(regex, dialect);
}

}  // namespace convene::worker
