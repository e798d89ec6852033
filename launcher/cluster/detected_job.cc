#include "launcher/cluster/detected_job.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace convene::launcher {

absl::StatusOr<std::optional<int>> CountOf(const EnvironmentLookup& environment,
                                           const std::string& name) {
  const auto text = environment(name);
  if (!text.has_value()) return std::optional<int>();
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", *text, " is no count; unset it or start with --standalone"));
  }
  return std::optional<int>(number);
}

int CountVisibleDevices(const std::string& list) {
  int count = 0;
  for (absl::string_view item : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    item = absl::StripAsciiWhitespace(item);
    if (absl::StartsWith(item, "-") || item == "NoDevFiles") break;
    ++count;
  }
  return count;
}

Fact FactAt(const void* member, const DetectedJob& job) {
  if (member == &job.job_id) return Fact::kJobId;
  if (member == &job.nodes) return Fact::kNodes;
  if (member == &job.node_rank) return Fact::kNodeRank;
  return member == &job.endpoint ? Fact::kEndpoint : Fact::kOther;
}

bool IsShell(const std::string& program) {
  static const std::set<std::string> kShells = {"ash", "bash", "csh",  "dash", "fish",
                                                "ksh", "sh",   "tcsh", "zsh"};
  return kShells.count(program) > 0;
}

}  // namespace convene::launcher
