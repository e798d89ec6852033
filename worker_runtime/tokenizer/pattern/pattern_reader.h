// PURE. Parts of a pattern that both its groups and its sets have: characters, escapes, errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pattern/character_set.h"
#include "worker_runtime/tokenizer/pattern/dialect.h"

namespace convene::worker {

// One character, or a named set of them.
struct PatternItem {
  std::optional<char32_t> character = std::nullopt;
  CharacterSet set = {};
  bool is_without_case = false;  // of a set: (?i) adds nothing to it
};

// A place in a pattern, which goes on as parts are read.
class PatternReader {
 public:
  // `regex` must outlive it. REQUIRES: UTF-8.
  PatternReader(absl::string_view regex, const PatternRules& rules)
      : regex_(regex), rules_(rules) {}

  bool at_end() const { return at_ == regex_.size(); }
  bool Is(absl::string_view text) const { return regex_.substr(at_, text.size()) == text; }
  // Goes past `text`, if that comes next.
  bool Take(absl::string_view text);
  size_t at() const { return at_; }
  // The pattern from `at` on.
  absl::string_view rest() const { return regex_.substr(at_); }
  bool is_rust() const { return rules_.dialect == PatternDialect::kRust; }
  const PatternRules& rules() const { return rules_; }

  // The next character. REQUIRES: !at_end().
  char32_t TakeCharacter();

  // The escape behind a backslash, where it means the same within a set and outside. `in_set`
  // decides about \w. Errors: Refused's and Broken's.
  absl::StatusOr<PatternItem> TakeEscape(bool in_set);

  // A set, from its '[' on. The reader stands behind that. Within (?i) with `ignores_case`.
  absl::StatusOr<CharacterSet> TakeSet(bool ignores_case);

  // `item` in whatever case. Refused: what the originals fold in ways that have no set here.
  absl::StatusOr<CharacterSet> InAnyCase(const PatternItem& item) const;

  // Unimplemented: the original knows `what`, which this program does not run. `at`: where it is.
  absl::Status Refused(absl::string_view what, size_t at) const;
  // InvalidArgument: the original refuses it, too.
  absl::Status Broken(absl::string_view what, size_t at) const;

 private:
  absl::StatusOr<char32_t> TakeNumber(size_t begin, char kind);
  absl::StatusOr<PatternItem> TakeProperty(size_t begin, bool is_negated);
  absl::StatusOr<CharacterSet> TakeSetItems(bool ignores_case, int depth);
  absl::StatusOr<CharacterSet> TakeOneOfSet(bool ignores_case, bool is_first, int depth);
  absl::StatusOr<CharacterSet> TakeRange(PatternItem low, size_t begin, bool ignores_case);
  absl::StatusOr<PatternItem> TakeSetCharacter();
  std::optional<PatternItem> TakePosixSet();
  absl::StatusOr<CharacterSet> RangeInAnyCase(char32_t first, char32_t last, size_t begin) const;

  const absl::string_view regex_;
  const PatternRules rules_;
  size_t at_ = 0;
  bool is_behind_range_ = false;  // within a set
};

}  // namespace convene::worker
