#include "worker_runtime/tokenizer/pattern/character_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

std::string Written(char32_t character) {
  return absl::StrCat("\\x{", absl::Hex(static_cast<uint32_t>(character)), "}");
}

// Sorted, and what touches made one.
std::vector<CharacterRange> Merged(std::vector<CharacterRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& left, const auto& right) { return left.first < right.first; });
  std::vector<CharacterRange> merged;
  for (const CharacterRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace

CharacterSet CharacterSet::Of(char32_t first, char32_t last) { return Of({{first, last}}); }

CharacterSet CharacterSet::Of(std::vector<CharacterRange> ranges) {
  CharacterSet set;
  set.ranges_ = std::move(ranges);
  return set;
}

CharacterSet CharacterSet::OfProperty(absl::string_view inside, absl::string_view outside) {
  CharacterSet set;
  set.properties_ = std::string(inside);
  set.complement_ = std::string(outside);
  return set;
}

CharacterSet CharacterSet::Complement() const {
  CharacterSet set = *this;
  if (!group_.empty()) {
    set.group_ = absl::StrCat("(?:(?!", group_, ")(?s:.))");
  } else if (!complement_.empty()) {
    std::swap(set.properties_, set.complement_);
  } else {
    set.is_negated_ = !is_negated_;
  }
  return set;
}

CharacterSet CharacterSet::Or(const CharacterSet& other) const {
  if (is_empty()) return other;
  if (other.is_empty()) return *this;
  CharacterSet set;
  if (is_plain() && other.is_plain()) {
    set.properties_ = properties_ + other.properties_;
    set.ranges_ = ranges_;
    set.ranges_.insert(set.ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  } else {
    set.group_ = absl::StrCat("(?:", Regex(), "|", other.Regex(), ")");
  }
  return set;
}

CharacterSet CharacterSet::And(const CharacterSet& other) const {
  CharacterSet set;
  set.group_ = absl::StrCat("(?:(?=", Regex(), ")", other.Regex(), ")");
  return set;
}

std::string CharacterSet::Regex() const {
  if (!group_.empty()) return group_;
  const std::vector<CharacterRange> ranges = Merged(ranges_);
  if (properties_.empty() && ranges.empty()) return is_negated_ ? "(?s:.)" : "(?:(?!))";
  if (!complement_.empty()) return properties_;
  const bool is_one = ranges.size() == 1 && ranges[0].first == ranges[0].last;
  if (properties_.empty() && is_one && !is_negated_) return Written(ranges[0].first);
  std::string regex = absl::StrCat(is_negated_ ? "[^" : "[", properties_);
  for (const auto& [first, last] : ranges) {
    absl::StrAppend(&regex, Written(first));
    if (last > first) absl::StrAppend(&regex, "-", Written(last));
  }
  return absl::StrCat(regex, "]");
}

}  // namespace convene::worker
