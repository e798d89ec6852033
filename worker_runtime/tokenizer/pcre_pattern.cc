#include "worker_runtime/tokenizer/pcre_pattern.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/scanners.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace convene::worker {
namespace {

constexpr uint32_t kMostSteps = 10'000'000;
constexpr size_t kGivenUpBytes = 4096;
constexpr size_t kFirstStack = size_t{32} << 10;
constexpr size_t kLargestStack = size_t{16} << 20;

constexpr absl::string_view kWordSet = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

// One pass over a pattern, which copies it in PCRE2's words.
class Translator {
 public:
  explicit Translator(const std::string& regex) : regex_(regex) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < regex_.size()) {
      if (regex_[at_] == '\\') {
        Escape();
      } else if (regex_[at_] == '[') {
        CONVENE_RETURN_IF_ERROR(Set());
      } else {
        result_.push_back(regex_[at_++]);
      }
    }
    return std::move(result_);
  }

 private:
  bool Is(absl::string_view text) const {
    return absl::string_view(regex_).substr(at_, text.size()) == text;
  }
  void Copy(size_t bytes) {
    result_.append(regex_, at_, bytes);
    at_ += bytes;
  }

  // A backslash and its letter.
  void Escape() {
    const bool in_set = depth_ > 0;
    if (Is("\\s")) {
      result_ += R"(\p{White_Space})";
    } else if (Is("\\S")) {
      result_ += R"(\P{White_Space})";
    } else if (Is("\\w")) {
      absl::StrAppend(&result_, in_set ? "" : "[", std::string(kWordSet), in_set ? "" : "]");
    } else if (Is("\\W") && !in_set) {
      absl::StrAppend(&result_, "[^", std::string(kWordSet), "]");
    } else {
      Copy(2);
      return;
    }
    at_ += 2;
  }

  // A set, from '[' to its ']'. The sets within it lose their brackets.
  absl::Status Set() {
    CopyOpening();
    depth_ = 1;
    while (at_ < regex_.size() && depth_ > 0) {
      if (regex_[at_] == '\\') {
        Escape();
      } else if (Is("&&")) {
        return Refused("an intersection of sets (&&)");
      } else if (const size_t length = LengthOfNamedSet(); length > 0) {
        Copy(length);
      } else if (Is("[^")) {
        return Refused("a negated set within a set");
      } else if (regex_[at_] == '[') {
        ++depth_;
        ++at_;
        HyphenAsItself();
      } else if (depth_ > 1 && Is("-]")) {
        HyphenAsItself();
      } else if (regex_[at_] == ']') {
        if (--depth_ == 0) result_.push_back(']');
        ++at_;
      } else {
        result_.push_back(regex_[at_++]);
      }
    }
    depth_ = 0;
    return absl::OkStatus();
  }

  // "[", "[^", and a "]" right behind it, which is a character of the set.
  void CopyOpening() {
    Copy(Is("[^") ? 2 : 1);
    if (Is("]")) Copy(1);
  }

  // Of "[:alpha:]" and its like, else 0.
  size_t LengthOfNamedSet() const {
    if (!Is("[:")) return 0;
    size_t end = at_ + 2;
    while (end < regex_.size() && (absl::ascii_isalpha(regex_[end]) || regex_[end] == '^')) ++end;
    return absl::string_view(regex_).substr(end, 2) == ":]" ? end + 2 - at_ : 0;
  }

  // A hyphen at the edge of an inner set is no range once the brackets are gone.
  void HyphenAsItself() {
    if (!Is("-")) return;
    result_ += "\\-";
    ++at_;
  }

  absl::Status Refused(absl::string_view what) const {
    return absl::UnimplementedError(
        absl::StrCat("the split pattern has ", what, " at byte ", at_,
                     ", which this program cannot run: ", Utf8(regex_, 300)));
  }

  const std::string& regex_;
  std::string result_;
  size_t at_ = 0;
  int depth_ = 0;  // of sets
};

template <auto free>
struct FreedBy {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
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

}  // namespace

absl::StatusOr<std::string> InWordsOfPcre(const std::string& regex) {
  return Translator(regex).Run();
}

absl::StatusOr<std::unique_ptr<SplitPattern>> MakePcrePattern(const std::string& regex) {
  CONVENE_ASSIGN_OR_RETURN(const std::string words, InWordsOfPcre(regex));
  int error = 0;
  PCRE2_SIZE place = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(words.data()), words.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C,
                          &error, &place, nullptr));
  if (code == nullptr) {
    std::string message(256, '\0');
    const int length =
        pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(&message[0]), message.size());
    message.resize(static_cast<size_t>(std::max(length, 0)));
    return absl::InvalidArgumentError(
        absl::StrCat("the split pattern is no regular expression that PCRE2 takes: ", message,
                     ", at byte ", place, " of ", Utf8(words, 300)));
  }
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) {
    return absl::UnimplementedError(
        absl::StrCat("the split pattern ", Utf8(words, 300),
                     " may match the empty text: other programs cut there, which this one cannot"));
  }
  // Without machine code, where the system forbids it, PCRE2 interprets: slower, the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return std::make_unique<PcrePattern>(std::move(code));
}

absl::StatusOr<std::unique_ptr<SplitPattern>> MakeSplitPattern(const std::string& regex) {
  if (std::unique_ptr<SplitPattern> scanner = MakeScanner(regex)) return scanner;
  return MakePcrePattern(regex);
}

}  // namespace convene::worker
