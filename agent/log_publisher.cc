#include "agent/log_publisher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"

namespace convene::agent {
namespace {

using rendezvous::LogBatch;
using rendezvous::LogPublication;
using rendezvous::WatchId;

// It is short, because the daemon has just sent a message.
constexpr absl::Duration kDialTimeout = absl::Seconds(3);
// The longest wait until the daemon has acknowledged the end of the lines.
constexpr absl::Duration kEndPatience = absl::Seconds(5);

}  // namespace

LogPublisher::LogPublisher(RecentLines& lines, Node node) : lines_(lines), node_(std::move(node)) {}

LogPublisher::~LogPublisher() {
  {
    MutexLock lock(&mutex_);
    is_stopping_ = true;
    for (Publication& publication : publications_) {
      if (publication.call != nullptr) publication.call->Cancel();
    }
  }
  for (Publication& publication : publications_) lines_.Stop(*publication.reader);
  for (Publication& publication : publications_) publication.thread.Join();
}

void LogPublisher::Publish(const rendezvous::LogsWanted& wanted,
                           const rendezvous::Endpoint& endpoint) {
  Reap();
  if (publications_.size() >= kMostAtOnce) {
    spdlog::warn("more than {} viewers look at this node's logs: the latest gets nothing",
                 kMostAtOnce);
    return;
  }
  Publication& publication = publications_.emplace_back();
  publication.reader = lines_.Open(wanted.filter, wanted.tail, wanted.follow, wanted.next_line);
  absl::StatusOr<Thread> thread =
      Thread::Start("publish-logs", [this, &publication, watch = wanted.watch_id, endpoint] {
        Run(&publication, watch, endpoint);
      });
  if (thread.ok()) {
    publication.thread = *std::move(thread);
    return;
  }
  spdlog::warn("a viewer of `convene logs` gets nothing from this node: {}",
               std::string(thread.status().message()));
  lines_.Forget(publication.reader);
  publications_.pop_back();
}

void LogPublisher::Run(Publication* publication, WatchId watch,
                       const rendezvous::Endpoint& endpoint) {
  absl::StatusOr<std::unique_ptr<LogPublication>> call = LogPublication::Open(
      endpoint, kDialTimeout, [this, publication] { lines_.Stop(*publication->reader); });
  if (call.ok()) {
    {
      MutexLock lock(&mutex_);
      publication->call = call->get();
      if (is_stopping_) publication->call->Cancel();
    }
    Send(publication, call->get(), watch);
    {
      MutexLock lock(&mutex_);
      publication->call = nullptr;
    }
    call->reset();
  } else {
    spdlog::debug("logs cannot be published: {}", call.status().ToString());
  }
  lines_.Forget(publication->reader);
  MutexLock lock(&mutex_);
  publication->is_done = true;
  changed_.SignalAll();
}

void LogPublisher::Send(Publication* publication, LogPublication* call, WatchId watch) {
  LogBatch batch;
  uint64_t next_line = 0;
  do {
    batch.is_last = !lines_.Next(*publication->reader, &batch);
    batch.watch_id = watch;
    batch.agent = node_.agent;
    batch.host = node_.host;
    batch.role = node_.role;
    batch.next_line = next_line = std::max(next_line, batch.next_line);
    if (!call->Write(batch)) return;
  } while (!std::exchange(batch, {}).is_last);
  call->Finish(Clock::Real().Now() + kEndPatience);
}

void LogPublisher::Reap() {
  MutexLock lock(&mutex_);
  for (auto publication = publications_.begin(); publication != publications_.end();) {
    const auto next = std::next(publication);
    if (publication->is_done) {
      publication->thread.Join();  // It is about to end, and needs the lock no more.
      publications_.erase(publication);
    }
    publication = next;
  }
}

void LogPublisher::Finish(absl::Duration patience) {
  lines_.Close();
  const MonotonicTime deadline = Clock::Real().Now() + patience;
  MutexLock lock(&mutex_);
  const auto all_done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::all_of(publications_.begin(), publications_.end(),
                       [](const Publication& publication) { return publication.is_done; });
  };
  while (!all_done()) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return;
    changed_.WaitFor(&mutex_, left);
  }
}

}  // namespace convene::agent
