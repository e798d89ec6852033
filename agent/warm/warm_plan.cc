#include "agent/warm/warm_plan.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

constexpr absl::string_view kPath = "PYTHONPATH=";

absl::string_view NameOf(absl::string_view program) {
  return program.substr(program.rfind('/') + 1);  // npos + 1 is 0.
}

// It speaks with the agent without warm.py (worker_runtime/session/warm_spare.h).
bool IsTrainer(const std::string& program) { return NameOf(program) == "convene-train"; }

bool IsPython(absl::string_view program) {
  program = NameOf(program);
  return absl::ConsumePrefix(&program, "python") &&
         program.find_first_not_of("0123456789.") == absl::string_view::npos;
}

std::vector<std::string> WithRole(const std::string& program, std::vector<std::string> environment,
                                  const char* role, const std::string& socket) {
  const std::string asked = absl::StrCat(contract::kWarm, "=", role, ":", socket, ":");
  if (IsTrainer(program)) {
    environment.push_back(asked);
    return environment;
  }
  const std::string folder = ParentDirectory(socket);
  const auto found =
      std::find_if(environment.begin(), environment.end(),
                   [](const std::string& entry) { return absl::StartsWith(entry, kPath); });
  std::string own;
  if (found != environment.end()) {
    own = absl::StrCat(":", found->substr(kPath.size()));
    environment.erase(found);
  }
  // An empty entry would be the current directory.
  environment.push_back(absl::StrCat(kPath, folder, own == ":" ? "" : own));
  environment.push_back(asked + own);
  return environment;
}

}  // namespace

std::string WarmRefusal(const std::vector<std::string>& command) {
  if (IsTrainer(command[0])) return "";
  if (!IsPython(command[0])) {
    return absl::StrCat("its program is ", command[0],
                        ", which is neither convene-train nor Python itself");
  }
  for (size_t i = 1; i < command.size(); ++i) {
    const absl::string_view word = command[i];
    if (word == "-") break;
    if (!absl::StartsWith(word, "-")) return "";
    if (absl::StartsWith(word, "--")) continue;
    for (size_t at = 1; at < word.size(); ++at) {
      const char letter = word[at];
      if (letter == 'm' || letter == 'c') return "";
      if (letter == 'E' || letter == 'I' || letter == 'S') {
        return absl::StrCat("Python's option -", std::string(1, letter),
                            " keeps it from looking at what the agent tells it");
      }
      if (letter != 'W' && letter != 'X') continue;
      if (at + 1 == word.size()) ++i;  // Its value is the next word.
      break;
    }
  }
  return "Python reads its script from stdin";
}

std::string BindingRefusal(const std::map<std::string, std::string>& environment) {
  const auto value = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? "" : found->second;
  };
  if (absl::EqualsIgnoreCase(value("OMP_PROC_BIND"), "false")) return "";  // It binds none.
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"}) {
    if (value(name).empty()) continue;
    return absl::StrCat(name, " binds the threads of an OpenMP library to CPUs, and ",
                        "--numa-binding gives each worker others; leave one of the two out");
  }
  return "";
}

std::set<std::string> PlaceVariables(bool own_device) {
  std::set<std::string> names = {
      contract::kRank, contract::kLocalRank, contract::kGroupRank, contract::kRoleRank,
      contract::kWorldSize, contract::kGroupWorldSize, contract::kRoleWorldSize,
      contract::kMasterAddr, contract::kMasterPort, contract::kRestartCount, contract::kErrorFile,
      contract::kEpoch, contract::kAttempt, contract::kProgress, contract::kNodeLocalRank,
      contract::kMaxRestarts,
      // In another folder where somebody has removed the agent's.
      contract::kSession, contract::kTimerFile};
  if (own_device) names.insert({contract::kCudaVisibleDevices, contract::kHipVisibleDevices});
  return names;
}

std::vector<std::string> SlotVariables(const std::vector<std::string>& environment) {
  std::vector<std::string> found;
  for (const std::string& entry : environment) {
    const absl::string_view name = absl::string_view(entry).substr(0, entry.find('='));
    if (name == contract::kLocalRank || name == contract::kNodeLocalRank ||
        name == contract::kCudaVisibleDevices || name == contract::kHipVisibleDevices) {
      found.push_back(entry);
    }
  }
  return found;
}

std::vector<int> SpareSlots(int count, int workers, std::optional<int> cold) {
  std::vector<int> slots;
  const int warm = cold.has_value() ? workers - 1 : workers;
  for (int i = 0; i < count && warm > 0; ++i) {
    const int rank = i % warm;
    slots.push_back(cold.has_value() && rank >= *cold ? rank + 1 : rank);
  }
  return slots;
}

std::vector<std::string> RecorderEnvironment(const std::string& program,
                                             std::vector<std::string> environment,
                                             const std::string& socket) {
  return WithRole(program, std::move(environment), "record", socket);
}

std::vector<std::string> ParentEnvironment(const std::string& program,
                                           std::vector<std::string> environment,
                                           const std::set<std::string>& places,
                                           const std::string& socket) {
  environment.erase(std::remove_if(environment.begin(), environment.end(),
                                   [&](const std::string& entry) {
                                     return places.count(entry.substr(0, entry.find('='))) > 0;
                                   }),
                    environment.end());
  return WithRole(program, std::move(environment), "parent", socket);
}

WarmPlan::Deed WarmPlan::Next(MonotonicTime now) {
  if (phase_ == Phase::kRecorded && !has_parent_) {
    phase_ = Phase::kWarming;
    has_parent_ = must_import_ = true;
    has_learned_ = false;
    warm_by_ = now + kWarmLimit;
    return Deed::kStartParent;
  }
  if (phase_ == Phase::kWarming && is_connected_ && must_import_) {
    must_import_ = false;
    warm_by_ = now + kWarmLimit;
    return Deed::kImport;
  }
  if (phase_ == Phase::kWarming && now >= warm_by_) {
    is_connected_ = false;
    warm_by_ = MonotonicTime::InfiniteFuture();
    return Deed::kEndParent;
  }
  if (phase_ == Phase::kWarm && spares_ < count_ && now >= fork_at_) {
    ++spares_;
    return Deed::kFork;
  }
  return Deed::kNone;
}

MonotonicTime WarmPlan::deadline() const {
  const MonotonicTime start =
      start_by_ == MonotonicTime() ? MonotonicTime::InfiniteFuture() : start_by_;
  if (phase_ == Phase::kWarming) return std::min(warm_by_, start);
  if (phase_ == Phase::kWarm && spares_ < count_) return std::min(fork_at_, start);
  return start;
}

void WarmPlan::Kept(MonotonicTime start_by) {
  Recorded();
  start_by_ = start_by;
}

void WarmPlan::Recorded() {
  if (phase_ == Phase::kOff) return;
  if (phase_ == Phase::kUnknown || phase_ == Phase::kRecorded) {
    phase_ = Phase::kRecorded;
    return;
  }
  phase_ = Phase::kWarming;
  must_import_ = true;
}

void WarmPlan::Warm(MonotonicTime now) {
  if (phase_ != Phase::kWarming || must_import_) return;
  phase_ = Phase::kWarm;
  fork_at_ = std::max(fork_at_, now);  // A pause after a death goes on.
}

void WarmPlan::LeaveOut(const std::string& module) {
  has_learned_ = left_out_.insert(module).second && left_out_.size() <= kMostLeftOut;
}

void WarmPlan::ParentEnded() {
  has_parent_ = is_connected_ = false;
  if (phase_ != Phase::kWarming && phase_ != Phase::kWarm) return;
  if (!has_learned_) ++failures_;
  phase_ = failures_ > kMostFailures ? Phase::kOff : Phase::kRecorded;
}

void WarmPlan::SpareDied(MonotonicTime now) {
  --spares_;
  if (phase_ != Phase::kWarm || now < fork_at_) return;  // One of many that die at once.
  fork_at_ = now + kRefillDelay * (failures_ + 1);
  if (++failures_ > kMostFailures) phase_ = Phase::kOff;
}

void WarmPlan::Used(MonotonicTime now) {
  --spares_;
  failures_ = 0;
  fork_at_ = now + kRefillDelay;
}

void WarmPlan::Changed() {
  if (phase_ == Phase::kOff) return;
  phase_ = Phase::kUnknown;
  must_import_ = false;
  left_out_.clear();
}

}  // namespace convene::agent
