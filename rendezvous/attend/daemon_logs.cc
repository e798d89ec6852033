// Daemon's functions that ask agents for their workers' output.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/attend/daemon.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kMostNamed = 16;

bool IsAsked(const LogRequest& request, const std::string& host) {
  return request.hosts.empty() ||
         std::find(request.hosts.begin(), request.hosts.end(), host) != request.hosts.end();
}

bool IsBefore(const LogMark& a, const LogMark& b) { return a.agent < b.agent; }

absl::Status CheckHosts(const LogRequest& request, const std::vector<JobTable::LogSource>& nodes) {
  std::set<std::string> there;
  for (const JobTable::LogSource& source : nodes) there.insert(source.node.host);
  for (const std::string& host : request.hosts) {
    if (there.count(host) > 0) continue;
    const std::string known = JoinCapped({there.begin(), there.end()}, kMostNamed);
    return absl::NotFoundError(absl::StrCat("the run ", request.job_id, " has no node ", host,
                                            known.empty() ? "; none is there now" : "; it has ",
                                            known));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LogStart> Daemon::WatchLogs(WatchId watch, const LogRequest& asked) {
  const MonotonicTime now = clock_->Now();
  LogRequest request = asked;
  // The list is searched for each agent, under the lock.
  std::sort(request.seen.begin(), request.seen.end(), IsBefore);
  LogStart start;
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    if (shutdown_) return absl::UnavailableError("the rendezvous daemon is stopping");
    CONVENE_ASSIGN_OR_RETURN(const std::vector<JobTable::LogSource> sources,
                             table_.LogSources(now, request.job_id));
    CONVENE_RETURN_IF_ERROR(CheckHosts(request, sources));
    for (const JobTable::LogSource& source : sources) {
      if (!IsAsked(request, source.node.host)) continue;
      start.nodes.push_back(source.node);
      AskForLogs(watch, request, source, &aftermath);
    }
    log_watches_.emplace(watch, std::move(request));
  }
  Finish(aftermath);
  return start;
}

void Daemon::UnwatchLogs(WatchId watch) {
  MutexLock lock(&mutex_);
  log_watches_.erase(watch);
}

void Daemon::AskForLogs(WatchId watch, const LogRequest& request, const JobTable::LogSource& source,
                        Aftermath* aftermath) {
  if (!source.node.publishes_logs) return;
  LogsWanted wanted{watch, request.filter, request.tail, request.follow, 0};
  const auto mark = std::lower_bound(request.seen.begin(), request.seen.end(),
                                     LogMark{source.node.agent, 0}, IsBefore);
  if (mark != request.seen.end() && mark->agent == source.node.agent) {
    wanted.next_line = mark->next_line;
  }
  // This message does not wait for the disk, since it says nothing about the job. Agents take it at
  // any time.
  Queue({source.id, DaemonEvent{Epoch(), std::move(wanted)}}, aftermath);
}

void Daemon::AskForLogs(MemberId id, const std::string& job_id, Aftermath* aftermath) {
  for (const auto& [watch, request] : log_watches_) {
    if (!request.follow || request.job_id != job_id) continue;
    const std::optional<JobTable::LogSource> source = table_.LogSourceOf(id);
    if (!source.has_value() || !IsAsked(request, source->node.host)) continue;
    AskForLogs(watch, request, *source, aftermath);
  }
}

void Daemon::EndWatches(Aftermath* aftermath) {
  for (auto watch = log_watches_.begin(); watch != log_watches_.end();) {
    const Job* job = table_.Find(watch->second.job_id);
    if (job != nullptr && !job->closed()) {
      ++watch;
      continue;
    }
    RunEnded ended;
    if (job != nullptr) {
      JobView view = job->View(clock_->Now());
      ended = {std::move(view.phase), std::move(view.why)};
    }
    aftermath->ended_watches.emplace_back(watch->first, std::move(ended));
    watch = log_watches_.erase(watch);
  }
}

}  // namespace convene::rendezvous
