#include "agent/custody/custody.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "agent/custody/spawn.h"
#include "spdlog/spdlog.h"
#include "tools/base/backoff.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/random.h"
#include "tools/base/signals.h"
#include "tools/base/text.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

// "off": no cgroups, for a node where another program manages them.
constexpr char kCgroupsVariable[] = "CONVENE_CGROUPS";

std::string Joined(const char* outer, const std::string& own) {
  return outer == nullptr || *outer == '\0' ? own : absl::StrCat(outer, ":", own);
}

// "sleep (pid 12)". Not its command line: that stands in its memory, and reading the memory of a
// process that hangs in the kernel may hang this one too.
std::string NameForPerson(pid_t pid, absl::string_view remark = "") {
  const auto name = ReadFile(absl::StrCat("/proc/", pid, "/comm"));
  return absl::StrCat(name.ok() ? Utf8(absl::StripAsciiWhitespace(*name)) : "?", " (pid ", pid,
                      remark, ")");
}

std::string CgroupParent() {
  const char* wish = std::getenv(kCgroupsVariable);
  if (wish != nullptr && absl::string_view(wish) == "off") return "";
  std::string parent = OwnCgroup();
  if (!parent.empty()) SweepCgroups(parent);
  return parent;
}

// Whether there are children, without the guardian. This question costs nothing.
bool HasChildren() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// A process that has ended does not count as a stranger: only its entry is left, and only we can
// reap it.
bool HasStrangers() {
  if (getpid() == 1) return true;
  Custody::ReapOrphans();
  return HasChildren();
}

}  // namespace

Custody::Custody(EventLoop& loop, std::function<void()> on_orphan_ended)
    : loop_(loop),
      on_orphan_ended_(std::move(on_orphan_ended)),
      own_token_(absl::StrFormat("%016x", RandomU64())),
      token_(Joined(std::getenv(contract::kAgentToken), own_token_)),
      cgroup_parent_(CgroupParent()),
      cgroup_prefix_(absl::StrCat(Cgroup::NamePrefix(), own_token_, ".")),
      has_strangers_(HasStrangers()),
      child_signals_(TakeSignals({SIGCHLD})),
      guardian_(loop, own_token_, cgroup_parent_, cgroup_prefix_) {
  CONVENE_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  loop_.Watch(child_signals_.get(), [this] { OnChildSignal(); });
}

Custody::~Custody() { loop_.Forget(child_signals_.get()); }

void Custody::BeginEpoch() {
  if (cgroup_parent_.empty()) return;
  cgroup_ = Cgroup::Create(cgroup_parent_, absl::StrCat(cgroup_prefix_, ++epochs_));
  if (cgroup_ == nullptr) {
    spdlog::debug("no cgroup for the workers: {} is not writable", cgroup_parent_);
  }
}

std::atomic<pid_t>* Custody::SessionSlot(int local_rank) {
  if (local_rank >= GuardianPage::kMostWorkers) return nullptr;
  return &guardian_.page().sessions[local_rank];
}

std::vector<ProcessEntry> Custody::Left() {
  ReapOrphans();
  if (!HasChildren()) return {};
  ProcessTable& table = ProcessTable::Read();
  if (has_released_) {
    guardian_.page().ForgetEnded(table);
    guardian_.page().FollowReleased(table);
  }
  const pid_t self = getpid();
  const pid_t own_session = getsid(0);
  for (ProcessEntry& entry : table) {
    // A process in our session was not started here: workers have sessions of their own. Reading
    // the memory of a process in state D may hang this one too.
    entry.chosen = entry.parent == self && entry.pid != guardian_.pid() &&
                   !is_companion_(entry.session) && entry.session != own_session &&
                   !guardian_.page().IsReleased(entry.session) &&
                   (!has_strangers_ || workers_.count(entry.session) > 0 ||
                    (entry.state != 'D' && EnvironmentHolds(entry.pid, own_token_.c_str())));
  }
  table.ChooseDescendants();
  std::vector<ProcessEntry> left;
  std::copy_if(table.begin(), table.end(), std::back_inserter(left),
               [](const ProcessEntry& entry) { return entry.chosen && !entry.ended(); });
  return left;
}

std::vector<std::string> Custody::NamesOfLeft() {
  std::vector<ProcessEntry> left = Left();
  std::sort(left.begin(), left.end(),
            [](const ProcessEntry& a, const ProcessEntry& b) { return a.IsOlderThan(b); });
  std::vector<std::string> names;
  for (const ProcessEntry& entry : left) {
    const bool is_of_check = of_check_.count(entry.pid) > 0;
    names.push_back(NameForPerson(entry.pid, is_of_check ? ", the health check started it" : ""));
  }
  return names;
}

void Custody::NoteHealthCheck() {
  of_check_.clear();
  for (const ProcessEntry& entry : Left()) of_check_.insert(entry.pid);
}

void Custody::SignalLeft(int signal, const std::function<bool(pid_t group)>& skips) {
  for (const ProcessEntry& entry : Left()) {
    if (skips(entry.group)) continue;
    SignalProcess(entry, signal);
    SignalProcess(entry, SIGCONT);  // A stopped process would not see the signal.
  }
}

void Custody::PassOn(int signal) {
  for (const ProcessEntry& entry : Left()) SignalProcess(entry, signal);
}

size_t Custody::KillAll() {
  if (cgroup_ != nullptr) KillCgroup(cgroup_->fd());
  const std::vector<ProcessEntry> left = Left();
  for (const ProcessEntry& entry : left) SignalProcess(entry, SIGKILL);
  return left.size();
}

void Custody::Release() {
  if (cgroup_ != nullptr) cgroup_->Release();
  for (const ProcessEntry& entry : Left()) guardian_.page().Release(entry.session);
  has_released_ = true;
}

void Custody::EndEpoch() {
  workers_.clear();  // From now on a number may become a stranger's.
  cgroup_.reset();
}

void Custody::ReapOrphans() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    if (IsSpawned(info.si_pid)) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
    info.si_pid = 0;
  }
}

void Custody::OnChildSignal() {
  signalfd_siginfo info;
  if (read(child_signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  ReapOrphans();
  on_orphan_ended_();
}

std::vector<std::string> KillMarked(const std::string& token, absl::Duration patience) {
  std::map<pid_t, std::string> found;
  const MonotonicTime deadline = Clock::Real().Now() + patience;
  Backoff backoff(absl::Milliseconds(1), absl::Milliseconds(50));
  for (;;) {
    ProcessTable& table = ProcessTable::Read();
    for (ProcessEntry& entry : table) {
      entry.chosen = !entry.ended() && entry.state != 'D' && entry.pid != getpid() &&
                     EnvironmentHolds(entry.pid, token.c_str());
    }
    table.ChooseDescendants();
    for (const ProcessEntry& entry : table) {
      if (entry.chosen && !entry.ended()) found.try_emplace(entry.pid, NameForPerson(entry.pid));
    }
    if (!table.KillChosen() || Clock::Real().Now() >= deadline) break;
    Clock::Real().SleepFor(backoff.Next(RandomFraction()));
  }
  std::vector<std::string> names;
  for (auto& [pid, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace convene::agent
