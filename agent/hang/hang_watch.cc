#include "agent/hang/hang_watch.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/output/last_lines.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"

namespace convene::agent {
namespace {

constexpr absl::Duration kLookInterval = absl::Seconds(1);
constexpr absl::Duration kDumpDeadline = absl::Seconds(10);
constexpr size_t kFirstLines = 20;

absl::Duration LookInterval(const HangLimits& limits) {
  absl::Duration interval = kLookInterval;
  for (const absl::Duration limit : {limits.startup, limits.step, limits.checkpoint}) {
    if (limit > absl::ZeroDuration()) interval = std::min(interval, limit / 4);
  }
  return std::max(interval, absl::Milliseconds(10));
}

// The resident memory of a process, and the most that it was; 0 where the kernel does not say.
void ReadMemory(pid_t pid, WorkerReading& reading) {
  const auto status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  if (!status.ok()) return;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    int64_t* const field = absl::ConsumePrefix(&line, "VmRSS:")   ? &reading.memory_bytes
                           : absl::ConsumePrefix(&line, "VmHWM:") ? &reading.memory_peak_bytes
                                                                  : nullptr;
    if (field == nullptr) continue;
    absl::ConsumeSuffix(&line, " kB");
    int64_t kibibytes = 0;
    if (absl::SimpleAtoi(line, &kibibytes)) *field = kibibytes << 10;
  }
}

}  // namespace

HangWatch::HangWatch(EventLoop& loop, const HangLimits& limits, std::string search_path,
                     Listener listener)
    : loop_(loop),
      look_interval_(LookInterval(limits)),
      search_path_(std::move(search_path)),
      listener_(std::move(listener)),
      directory_(ProgressPage::Directory()),
      detector_(limits, look_interval_),
      timer_(loop, [this] { OnTime(); }) {
  ProgressPage::SweepDead(directory_);
}

std::vector<std::string> HangWatch::BeginEpoch(Epoch epoch, int first_global_rank, int world_size,
                                               int workers) {
  EndEpoch();
  pages_.clear();
  epoch_ = epoch;
  first_global_rank_ = first_global_rank;
  reports_.BeginEpoch();
  detector_.BeginEpoch(first_global_rank, world_size, Clock::Real().Now());
  std::vector<std::string> paths(workers);
  for (int i = 0; i < workers; ++i) {
    auto page = ProgressPage::Create(directory_);
    if (!page.ok()) {
      Log(absl::StrCat("workers from local rank ", i,
                       " on get no progress page: ", std::string(page.status().message())));
      break;
    }
    paths[i] = (*page)->path();
    pages_[i] = *std::move(page);
  }
  return paths;
}

void HangWatch::Watch(const std::vector<pid_t>& pids) {
  for (size_t i = 0; i < pids.size(); ++i) pids_[static_cast<int>(i)] = pids[i];
  if (!pages_.empty()) timer_.Set(look_interval_, look_interval_);
}

void HangWatch::WorkerEnded(int local_rank, bool is_well) {
  pids_.erase(local_rank);
  if (pids_.empty()) timer_.Cancel();  // Nothing is left to look at.
  if (is_well) {
    const auto page = pages_.find(local_rank);
    const auto reading = page == pages_.end() ? std::nullopt : page->second->Read();
    detector_.EndedWell(local_rank,
                        reading.has_value() ? std::optional<int64_t>(reading->step) : std::nullopt,
                        Clock::Real().Now());
  } else {
    detector_.Forget(local_rank);
  }
  if (local_rank == suspect_) {
    dump_.reset();
    suspect_ = -1;
    is_blamed_by_another_ = false;
  }
}

void HangWatch::EndEpoch() {
  timer_.Cancel();
  dump_.reset();
  suspect_ = -1;
  verdict_.reset();
  is_blamed_by_another_ = is_paused_ = false;
  pids_.clear();
}

std::optional<rendezvous::WorkerProgress> HangWatch::Progress() const {
  if (pids_.empty()) return std::nullopt;
  return detector_.Progress(Clock::Real().Now());
}

std::vector<rendezvous::RankProgress> HangWatch::TakeRanks() {
  const MonotonicTime now = Clock::Real().Now();
  if (!reports_.IsDue(now)) return {};
  std::map<int, WorkerReading> readings = Readings();
  for (auto& [local_rank, reading] : readings) {
    if (reading.memory_bytes == 0) {
      ReadMemory(TellingProcess(pids_.at(local_rank), reading.pid), reading);
    }
  }
  return reports_.Report(readings, now);
}

bool HangWatch::Blame(pid_t pid, const std::string& why) {
  const auto found = absl::c_find_if(pids_, [&](const auto& entry) { return entry.second == pid; });
  if (found == pids_.end() || dump_ != nullptr) return false;
  is_blamed_by_another_ = true;
  verdict_ = HangVerdict{{found->first}, why};
  BeginDump(*verdict_, Readings());
  return true;
}

std::map<int, WorkerReading> HangWatch::Readings() const {
  std::map<int, WorkerReading> readings;
  for (const auto& [local_rank, pid] : pids_) {
    const auto page = pages_.find(local_rank);
    if (page == pages_.end()) continue;
    if (auto reading = page->second->Read(); reading.has_value()) {
      reading->is_stopped = IsStopped(TellingProcess(pid, reading->pid));
      readings[local_rank] = *std::move(reading);
    }
  }
  return readings;
}

void HangWatch::OnTime() {
  // While paused there are no looks; the next look bridges the gap.
  if (is_paused_ || is_blamed_by_another_) return;
  const std::map<int, WorkerReading> readings = Readings();
  verdict_ = detector_.Look(readings, Clock::Real().Now());
  if (const std::string news = detector_.TakeNews(); !news.empty()) Log(news);
  if (!verdict_.has_value() || dump_ != nullptr) return;
  const int blamed = verdict_->local_ranks.front();
  const bool is_traced = absl::c_any_of(pids_, [&](const auto& entry) {
    const auto reading = readings.find(entry.first);
    return IsTraced(entry.second) || (reading != readings.end() &&
                                      IsTraced(TellingProcess(entry.second, reading->second.pid)));
  });
  if (!is_traced) return BeginDump(*verdict_, readings);
  if (!std::exchange(has_told_of_tracing_, true)) {
    Log(absl::StrCat("rank ", first_global_rank_ + blamed, ": ", verdict_->why,
                     "; left alone while a worker is being debugged"));
  }
}

void HangWatch::BeginDump(const HangVerdict& verdict,
                          const std::map<int, WorkerReading>& readings) {
  suspect_ = verdict.local_ranks.front();
  suspect_why_ = verdict.why;
  Log(absl::StrCat("rank ", first_global_rank_ + suspect_, " (pid ", pids_.at(suspect_),
                   "): ", verdict.why, "; looking where it stands"));
  // The workers furthest behind come first, then the workers that wait for them.
  std::vector<int> local_ranks = verdict.local_ranks;
  for (const auto& [local_rank, reading] : readings) {
    if (absl::c_linear_search(verdict.local_ranks, local_rank)) continue;
    local_ranks.push_back(local_rank);
  }
  std::vector<StackTarget> targets;
  for (const int local_rank : local_ranks) {
    const auto reading = readings.find(local_rank);
    const bool has_told = reading != readings.end();
    targets.push_back(
        {.global_rank = first_global_rank_ + local_rank,
         .pid = TellingProcess(pids_.at(local_rank), has_told ? reading->second.pid : 0),
         .dumps_on_signal = has_told && reading->second.dumps_on_signal});
  }
  dump_ = std::make_unique<StackDump>(loop_, targets, search_path_, kDumpDeadline,
                                      [this](const StackDump::Result& result) { OnDump(result); });
}

void HangWatch::OnDump(const StackDump::Result& result) {
  dump_.reset();
  const int suspect = std::exchange(suspect_, -1);
  for (const std::string& line : result.lines) Log(line);
  // Another worker may come first by now, without a step of the suspect: waits begin and end.
  if (!verdict_.has_value() || !absl::c_linear_search(verdict_->local_ranks, suspect)) {
    Log(absl::StrCat("rank ", first_global_rank_ + suspect,
                     " went on by itself meanwhile: it is not stopped"));
    return;
  }
  const bool by_debugger = !result.stack.empty();
  const std::vector<std::string>& lines = by_debugger ? result.stack : result.lines;
  LastLines first;  // Bounded, and UTF-8 whatever a debugger prints.
  for (size_t i = 0; i < std::min(lines.size(), kFirstLines); ++i) first.Add(lines[i]);
  timer_.Cancel();
  listener_.on_hang({epoch_, suspect, pids_.at(suspect), suspect_why_, first.Get()}, by_debugger);
}

}  // namespace convene::agent
