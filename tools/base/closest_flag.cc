#include "tools/base/closest_flag.h"

#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/base/text.h"

namespace convene {
namespace {

// More candidates than these help no person.
constexpr size_t kMostNamed = 3;
// Shorter beginnings stand for too much.
constexpr size_t kLeastBeginning = 3;
// "--Batch_size": batch, size.
std::vector<std::string> WordsOf(absl::string_view flag) {
  const std::string dashed =
      absl::AsciiStrToLower(absl::StrReplaceAll(std::string(flag), {{"_", "-"}}));
  return absl::StrSplit(dashed, '-', absl::SkipEmpty());
}

bool HasWord(const std::vector<std::string>& words, const std::string& word) {
  return absl::c_any_of(words, [&](const std::string& one) {
    return one == word || (word.size() >= kLeastBeginning && absl::StartsWith(one, word));
  });
}

std::string InitialsOf(const std::vector<std::string>& words) {
  return absl::StrJoin(words, "", [](std::string* initials, const std::string& word) {
    initials->push_back(word[0]);
  });
}

std::vector<std::string> Rest(const std::vector<std::string>& words) {
  return {words.begin() + 1, words.end()};
}

}  // namespace

std::string ClosestFlag(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::vector<std::string> words = WordsOf(word);
  if (words.empty()) return "";
  std::vector<std::string> same_words;
  size_t fewest = std::numeric_limits<size_t>::max();
  std::string same_initials;
  for (const std::string& candidate : candidates) {
    const std::vector<std::string> theirs = WordsOf(candidate);
    if (words[0].size() > 1 && InitialsOf(theirs) == words[0]) same_initials = candidate;
    const auto is_theirs = [&](const std::string& one) { return HasWord(theirs, one); };
    if (theirs.size() > fewest || !absl::c_all_of(words, is_theirs)) continue;
    if (theirs.size() < fewest) same_words.clear();
    fewest = theirs.size();
    same_words.push_back(candidate);
  }
  const bool is_one_word = words.size() == 1;
  if (is_one_word && !same_initials.empty()) return same_initials;
  if (!same_words.empty() && same_words.size() <= kMostNamed) {
    return absl::StrJoin(same_words, " or ");
  }
  std::string closest = ClosestMatch(word, candidates);
  const bool is_opposite = words[0] == "no" && WordsOf(closest) == Rest(words);
  return is_opposite ? "" : closest;
}

}  // namespace convene
