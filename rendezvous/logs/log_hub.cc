#include "rendezvous/logs/log_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/random.h"

namespace convene::rendezvous {
namespace {

absl::Status Stopping() { return absl::UnavailableError("the rendezvous daemon is stopping"); }

}  // namespace

absl::Status LogHub::CheckRoom(const std::string& job_id) const {
  if (is_stopping_) return Stopping();
  size_t of_run = 0;
  for (const auto& [id, watch] : watches_) of_run += watch.job_id == job_id ? 1 : 0;
  if (of_run >= kMostViewersPerRun) {
    return absl::ResourceExhaustedError(
        absl::StrCat(of_run, " viewers look at the run ", job_id,
                     " already, as many as its agents serve; one of them has to end first"));
  }
  if (watches_.size() >= kMostViewers) {
    return absl::ResourceExhaustedError(
        absl::StrCat(watches_.size(),
                     " viewers look at the runs of this rendezvous already, as many as it serves; "
                     "one of them has to end first"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WatchId> LogHub::Open(std::shared_ptr<Viewer> viewer, const LogRequest& request) {
  // The identity is random, so that an agent that publishes for an earlier daemon's watch finds
  // none.
  const WatchId id(RandomU64());
  {
    MutexLock lock(&mutex_);
    if (absl::Status room = CheckRoom(request.job_id); !room.ok()) return room;
    Watch& watch = watches_[id];
    watch.job_id = request.job_id;
    watch.viewer = std::move(viewer);
  }
  absl::StatusOr<LogStart> start = agents_->WatchLogs(id, request);
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto watch = watches_.find(id);
    if (start.ok()) {
      // The first agents may have published already.
      pb::LogNews news = ToWire(LogNews(*start));
      watch->second.queued_bytes += news.ByteSizeLong();
      watch->second.queue.push_front(std::move(news));
      return id;
    }
    Remove(watch, &calls);
  }
  return start.status();
}

bool LogHub::IsAtEnd(const Watch& watch) const {
  return is_stopping_ && (!watch.is_run_over || watch.publishers.empty());
}

LogHub::Taken LogHub::Take(WatchId id) {
  Calls calls;
  Taken taken;
  MutexLock lock(&mutex_);
  const auto found = watches_.find(id);
  if (found == watches_.end()) return absl::CancelledError("nobody looks any more");
  Watch& watch = found->second;
  if (watch.queue.empty() && IsAtEnd(watch)) {
    return watch.is_run_over ? absl::OkStatus() : Stopping();
  }
  // A publisher that goes on adds about one batch to the queue, or nothing when it has no lines.
  // When the queue is empty, all publishers go on.
  size_t expected = 0;
  if (watch.queue.empty()) {
    watch.is_idle = true;
    taken = Nothing{};
  } else {
    watch.queued_bytes -= watch.queue.front().ByteSizeLong();
    taken = std::move(watch.queue.front());
    watch.queue.pop_front();
    expected = watch.queued_bytes;
  }
  while (!watch.waiting.empty() && (watch.is_idle || expected < kFullQueueBytes)) {
    calls.resume.push_back(std::move(watch.waiting.front()));
    watch.waiting.pop_front();
    expected += kFullBatchBytes;
  }
  return taken;
}

void LogHub::Close(WatchId id) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto found = watches_.find(id);
    if (found == watches_.end()) return;
    Wake(&found->second, &calls);
    Remove(found, &calls);
  }
  agents_->UnwatchLogs(id);
}

LogHub::Answer LogHub::Publish(const std::shared_ptr<Publisher>& publisher, pb::LogBatch batch) {
  Calls calls;
  Answer answer = Answer::kReadOn;
  MutexLock lock(&mutex_);
  const auto found = watches_.find(WatchId(batch.watch_id()));
  if (found == watches_.end()) return Answer::kEnd;
  Watch& watch = found->second;
  watch.publishers.insert(publisher);
  pb::LogNews news;
  *news.mutable_batch() = std::move(batch);
  Push(std::move(news), &watch, &calls);
  if (watch.queued_bytes >= kFullQueueBytes) {
    watch.waiting.push_back(publisher);
    answer = Answer::kWait;
  }
  return answer;
}

void LogHub::Leave(WatchId id, AgentId agent, const std::shared_ptr<Publisher>& publisher) {
  Calls calls;
  MutexLock lock(&mutex_);
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  Watch& watch = found->second;
  if (watch.publishers.erase(publisher) == 0) return;
  watch.waiting.erase(std::remove(watch.waiting.begin(), watch.waiting.end(), publisher),
                      watch.waiting.end());
  Push(ToWire(LogNews(LogsGone{agent})), &watch, &calls);
}

void LogHub::EndRun(WatchId id, const RunEnded& ended) {
  Calls calls;
  MutexLock lock(&mutex_);
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  found->second.is_run_over = true;
  Push(ToWire(LogNews(ended)), &found->second, &calls);
}

void LogHub::Shutdown() {
  Calls calls;
  MutexLock lock(&mutex_);
  is_stopping_ = true;
  for (auto& [id, watch] : watches_) {
    if (watch.is_run_over && !watch.publishers.empty()) continue;
    calls.end.insert(calls.end.end(), watch.publishers.begin(), watch.publishers.end());
    Wake(&watch, &calls);
  }
}

void LogHub::Push(pb::LogNews news, Watch* watch, Calls* calls) {
  watch->queued_bytes += news.ByteSizeLong();
  watch->queue.push_back(std::move(news));
  Wake(watch, calls);
}

void LogHub::Wake(Watch* watch, Calls* calls) {
  if (std::exchange(watch->is_idle, false)) calls->wake.push_back(watch->viewer);
}

void LogHub::Remove(Watches::iterator watch, Calls* calls) {
  const auto& publishers = watch->second.publishers;
  calls->end.insert(calls->end.end(), publishers.begin(), publishers.end());
  watches_.erase(watch);
}

LogHub::Calls::~Calls() {
  for (const auto& publisher : resume) publisher->Resume();
  for (const auto& publisher : end) publisher->End();
  for (const auto& viewer : wake) viewer->Wake();
}

}  // namespace convene::rendezvous
