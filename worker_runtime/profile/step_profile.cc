#include "worker_runtime/profile/step_profile.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace convene::worker {
namespace {

struct Group {
  const char* name;
  std::vector<OpTime> ops;
  double seconds = 0;
};

size_t GroupOfOp(absl::string_view name) {
  if (absl::EndsWith(name, "MatMul") || name == "GroupedWeightGradient") return 0;
  if (absl::StartsWith(name, "Attention")) return 1;
  if (name == "AdamW" || name == "Momentum" || name == "Descend" || name == "SumOfSquares" ||
      name == "AddInOrder" || name == "DecideStep" || name == "RouterBiasStep")
    return 2;
  if (absl::StartsWith(name, kCommunicationPrefix)) return 3;
  return 4;
}

// The lines of a table whose steps took `seconds` in all.
class Table {
 public:
  Table(int64_t steps, double seconds) : steps_(steps), seconds_(seconds) {}

  std::string Line(absl::string_view name, double seconds) const {
    return absl::StrFormat("%-26s %9.2f  %5.1f%%\n", name, MillisecondsAStep(seconds),
                           100 * seconds / seconds_);
  }
  // Sorts `groups`.
  std::string Lines(std::vector<Group>& groups) const {
    const auto longer = [](const auto& a, const auto& b) { return a.seconds > b.seconds; };
    std::stable_sort(groups.begin(), groups.end(), longer);
    std::string text;
    for (Group& group : groups) {
      if (group.ops.empty()) continue;
      text += Line(group.name, group.seconds);
      std::stable_sort(group.ops.begin(), group.ops.end(), longer);
      for (const OpTime& op : group.ops) {
        text +=
            Line(absl::StrCat("  ", absl::StripPrefix(op.op, kCommunicationPrefix)), op.seconds);
      }
    }
    return text;
  }
  double MillisecondsAStep(double seconds) const {
    return 1e3 * seconds / static_cast<double>(steps_);
  }

 private:
  const int64_t steps_;
  const double seconds_;
};

double Add(const OpTime& time, Group& group) {
  group.ops.push_back(time);
  group.seconds += time.seconds;
  return time.seconds;
}

}  // namespace

std::string ProfileText(const std::vector<OpTime>& times, const std::vector<OpTime>& communication,
                        const std::vector<OpTime>& host, int64_t steps, double seconds) {
  if (steps == 0 || seconds <= 0) return "";
  std::vector<Group> groups = {
      {"products"}, {"attention"}, {"optimizer"}, {"communication"}, {"memory-bound"}};
  std::vector<Group> beside = {{"optimizer, beside"}, {"communication, beside"}};
  double in_ops = 0;
  for (const OpTime& time : times) in_ops += Add(time, groups[GroupOfOp(time.op)]);
  for (const OpTime& time : host) Add(time, beside[0]);
  for (const OpTime& time : communication) Add(time, beside[1]);
  const Table table(steps, seconds);
  return absl::StrCat(
      absl::StrFormat("%-26s %9s  %6s\n", absl::StrFormat("profile of %d steps", steps),
                      "ms a step", "share"),
      table.Lines(groups), table.Line("gaps", seconds - in_ops),
      absl::StrFormat("%-26s %9.2f\n", "step", table.MillisecondsAStep(seconds)),
      table.Lines(beside));
}

StepProfile::StepProfile(Device& device) {
  for (Stream* stream : {&device.compute(), &device.host(), &device.communication(),
                         &device.layer_communication()}) {
    watched_.push_back({*stream, device.MakeProfile(*stream)});
  }
}

StepProfile::~StepProfile() { Watch(false); }

void StepProfile::Watch(bool is_wanted) {
  for (Watched& watched : watched_) {
    watched.stream.set_profile(is_wanted ? watched.profile.get() : nullptr);
  }
}

void StepProfile::KeepSpans(size_t most) {
  for (Watched& watched : watched_) watched.profile->KeepSpans(most);
}

std::vector<OpSpans> StepProfile::TakeSpans() {
  std::vector<OpSpans> spans;
  for (Watched& watched : watched_) spans.push_back(watched.profile->TakeSpans());
  return spans;
}

std::string StepProfile::Text(int64_t steps, double seconds) const {
  std::vector<OpTime> communication;
  for (size_t i = 2; i < watched_.size(); ++i) {
    for (const OpTime& time : watched_[i].profile->Times()) communication.push_back(time);
  }
  return ProfileText(watched_[0].profile->Times(), communication, watched_[1].profile->Times(),
                     steps, seconds);
}

}  // namespace convene::worker
