#include "worker_runtime/trainer/profile_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace convene::worker {
namespace {

struct Group {
  const char* name;
  std::vector<OpTime> ops;
  double seconds = 0;
};

size_t GroupOfOp(const char* op) {
  const absl::string_view name = op;
  if (name == "MatMul") return 0;
  if (absl::StartsWith(name, "Attention")) return 1;
  if (name == "AdamW" || name == "SumOfSquares" || name == "DecideStep") return 2;
  return 3;
}

std::string Line(const std::string& name, double seconds, int64_t steps, double total_seconds) {
  return absl::StrFormat("%-26s %9.2f  %5.1f%%\n", name, 1e3 * seconds / static_cast<double>(steps),
                         100 * seconds / total_seconds);
}

}  // namespace

std::string ProfileText(const std::vector<OpTime>& times, int64_t steps, double seconds) {
  if (steps == 0 || seconds <= 0) return "";
  std::vector<Group> groups = {{"products"}, {"attention"}, {"optimizer"}, {"memory-bound"}};
  double in_ops = 0;
  for (const OpTime& time : times) {
    Group& group = groups[GroupOfOp(time.op)];
    group.ops.push_back(time);
    group.seconds += time.seconds;
    in_ops += time.seconds;
  }
  const auto longer = [](const auto& a, const auto& b) { return a.seconds > b.seconds; };
  std::stable_sort(groups.begin(), groups.end(), longer);
  std::string text = absl::StrFormat(
      "%-26s %9s  %6s\n", absl::StrFormat("profile of %d steps", steps), "ms a step", "share");
  for (Group& group : groups) {
    if (group.ops.empty()) continue;
    text += Line(group.name, group.seconds, steps, seconds);
    std::stable_sort(group.ops.begin(), group.ops.end(), longer);
    for (const OpTime& op : group.ops) {
      text += Line(absl::StrFormat("  %s", op.op), op.seconds, steps, seconds);
    }
  }
  text += Line("gaps", seconds - in_ops, steps, seconds);
  return text +
         absl::StrFormat("%-26s %9.2f\n", "step", 1e3 * seconds / static_cast<double>(steps));
}

}  // namespace convene::worker
