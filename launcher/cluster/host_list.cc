#include "launcher/cluster/host_list.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr size_t kLongestHost = 255;
constexpr size_t kMostDigits = 18;

absl::Status NoList(absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a host list such as node[01-04,7],login: ", why));
}

absl::Status TooManyHosts() {
  return NoList(absl::StrCat("it has more than ", kMostHosts, " hosts"));
}

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.size() <= kMostDigits &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// "01-04,7" to 01 02 03 04 7.
absl::StatusOr<std::vector<std::string>> ExpandGroup(absl::string_view group) {
  std::vector<std::string> numbers;
  for (const absl::string_view range : absl::StrSplit(group, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    const bool is_range = range.find('-') != absl::string_view::npos;
    const absl::string_view low = ends.first;
    const absl::string_view high = is_range ? ends.second : ends.first;
    uint64_t first = 0;
    uint64_t last = 0;
    if (!IsNumber(low) || !IsNumber(high) || !absl::SimpleAtoi(low, &first) ||
        !absl::SimpleAtoi(high, &last)) {
      return NoList(absl::StrCat("\"", range, "\" in [", group, "] is no number and no range"));
    }
    if (last < first) return NoList(absl::StrCat("the range ", range, " counts down"));
    if (last - first >= kMostHosts - numbers.size()) return TooManyHosts();
    for (uint64_t number = first; number <= last; ++number) {
      numbers.push_back(absl::StrFormat("%0*u", static_cast<int>(low.size()), number));
    }
  }
  return numbers;
}

// Every name of `names` with every one of `tails` behind it.
std::vector<std::string> Product(const std::vector<std::string>& names,
                                 const std::vector<std::string>& tails) {
  std::vector<std::string> product;
  product.reserve(names.size() * tails.size());
  for (const std::string& name : names) {
    for (const std::string& tail : tails) product.push_back(name + tail);
  }
  return product;
}

// One element of the list, such as "rack[1-2]n[01-04]".
absl::StatusOr<std::vector<std::string>> ExpandName(absl::string_view name) {
  if (name.empty()) return NoList("a name is empty");
  std::vector<std::string> hosts = {""};
  while (!name.empty()) {
    const size_t open = std::min(name.find('['), name.size());
    const absl::string_view literal = name.substr(0, open);
    const bool is_plain = std::all_of(literal.begin(), literal.end(), absl::ascii_isgraph);
    if (!is_plain || literal.find(']') != absl::string_view::npos) {
      return NoList(absl::StrCat("\"", literal, "\" is no part of a name"));
    }
    std::vector<std::string> tails = {std::string(literal)};
    name.remove_prefix(open);
    if (!name.empty()) {
      const size_t close = name.find(']');
      if (close == absl::string_view::npos) {
        return NoList(absl::StrCat("the bracket of \"", name, "\" is not closed"));
      }
      CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                               ExpandGroup(name.substr(1, close - 1)));
      tails = Product(tails, numbers);
      name.remove_prefix(close + 1);
    }
    if (hosts.size() * tails.size() > kMostHosts) return TooManyHosts();
    for (const auto* part : {&hosts, &tails}) {
      if (part->back().size() > kLongestHost) return NoList("a name is longer than 255 bytes");
    }
    hosts = Product(hosts, tails);
  }
  if (hosts.back().size() > kLongestHost) return NoList("a name is longer than 255 bytes");
  return hosts;
}

// Where the first element of `list` ends: at the first comma outside of brackets.
size_t EndOfName(absl::string_view list) {
  bool in_brackets = false;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') in_brackets = true;
    if (list[i] == ']') in_brackets = false;
    if (list[i] == ',' && !in_brackets) return i;
  }
  return list.size();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(const std::string& list) {
  std::vector<std::string> hosts;
  absl::string_view rest = list;
  for (;;) {
    const size_t end = EndOfName(rest);
    CONVENE_ASSIGN_OR_RETURN(std::vector<std::string> names, ExpandName(rest.substr(0, end)));
    if (hosts.size() + names.size() > kMostHosts) return TooManyHosts();
    std::move(names.begin(), names.end(), std::back_inserter(hosts));
    if (end == rest.size()) return hosts;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace convene::launcher
