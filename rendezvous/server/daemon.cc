#include "rendezvous/server/daemon.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
constexpr absl::Duration kLongestSleep = absl::Hours(1);

absl::Status Stopping() { return absl::UnavailableError("the rendezvous daemon is stopping"); }

}  // namespace

Daemon::Daemon(Clock* clock, bool quiet) : clock_(clock), quiet_(quiet) {
  ticker_ = Thread("rdzv-tick", [this] { TickUntilShutdown(); });
}

MemberId Daemon::Open(std::shared_ptr<StreamSink> sink) {
  const MonotonicTime now = clock_->Now();
  MemberId id;
  {
    MutexLock lock(&mutex_);
    id = last_id_ = last_id_.Next();
    if (!shutdown_) {
      sinks_.emplace(id.value(), std::move(sink));
      before_hello_.emplace(id, now + kHelloTimeout);
      if (now + kHelloTimeout < sleeps_until_) woken_.Signal();
      return id;
    }
    sink->Queue(Stopping());
  }
  sink->Flush();
  return id;
}

void Daemon::Join(MemberId id, Incarnation incarnation, const Hello& hello) {
  const MonotonicTime now = clock_->Now();
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    if (sinks_.count(id.value()) == 0) return;
    Outbox outbox;
    absl::Status joined = before_hello_.erase(id) == 0
                              ? absl::InvalidArgumentError("a second Hello on one stream")
                              : table_.Join(now, id, incarnation, hello, &outbox);
    if (!joined.ok()) {
      outbox.log.push_back(
          {absl::StrCat("job ", hello.job_id, ": refused ", hello.host, ": ", joined.message())});
      outbox.End(id, std::move(joined));
      table_.Disconnect(now, id, &outbox);
    }
    aftermath = Deliver(std::move(outbox));
  }
  Finish(aftermath);
}

void Daemon::Receive(MemberId id, Incarnation incarnation, Epoch epoch, const AgentEvent& event) {
  const MonotonicTime now = clock_->Now();
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    Outbox outbox;
    if (before_hello_.erase(id) > 0) {
      outbox.End(id, absl::InvalidArgumentError("the first message of a stream must be Hello"));
    } else {
      table_.Receive(now, id, incarnation, epoch, event, &outbox);
    }
    aftermath = Deliver(std::move(outbox));
  }
  Finish(aftermath);
}

void Daemon::Disconnect(MemberId id) {
  const MonotonicTime now = clock_->Now();
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    before_hello_.erase(id);
    sinks_.erase(id.value());
    Outbox outbox;
    table_.Disconnect(now, id, &outbox);
    aftermath = Deliver(std::move(outbox));
  }
  Finish(aftermath);
}

absl::StatusOr<std::vector<JobView>> Daemon::Views(const std::string& job_id) {
  MutexLock lock(&mutex_);
  return table_.Views(job_id);
}

Daemon::Aftermath Daemon::Deliver(Outbox outbox) {
  Aftermath aftermath;
  auto& touched = aftermath.sinks;
  for (Outbox::Item& item : outbox.items) {
    const auto found = sinks_.find(item.to.value());
    if (found == sinks_.end()) continue;
    const bool is_end = std::holds_alternative<absl::Status>(item.what);
    found->second->Queue(std::move(item.what));
    if (touched.empty() || touched.back() != found->second) touched.push_back(found->second);
    if (is_end) sinks_.erase(found);
  }
  aftermath.log = std::move(outbox.log);
  if (NextWakeUp() < sleeps_until_) woken_.Signal();
  return aftermath;
}

void Daemon::Finish(const Aftermath& aftermath) const {
  for (const std::shared_ptr<StreamSink>& sink : aftermath.sinks) sink->Flush();
  for (const Outbox::LogLine& line : aftermath.log) {
    const bool is_detail = line.is_detail || quiet_;
    spdlog::log(is_detail ? spdlog::level::debug : spdlog::level::info, "rendezvous: {}",
                line.text);
  }
}

MonotonicTime Daemon::NextWakeUp() {
  MonotonicTime next = table_.wake_at();
  // Identities rise with time: the first is the oldest.
  if (!before_hello_.empty()) next = std::min(next, before_hello_.begin()->second);
  return next;
}

void Daemon::EndSilentStreams(MonotonicTime now, Outbox* outbox) {
  while (!before_hello_.empty() && before_hello_.begin()->second <= now) {
    outbox->End(before_hello_.begin()->first,
                absl::DeadlineExceededError(
                    absl::StrCat("no Hello within ", absl::FormatDuration(kHelloTimeout))));
    before_hello_.erase(before_hello_.begin());
  }
}

void Daemon::TickUntilShutdown() {
  for (;;) {
    Aftermath aftermath;
    {
      MutexLock lock(&mutex_);
      if (shutdown_) return;
      const MonotonicTime now = clock_->Now();
      const MonotonicTime next = NextWakeUp();
      if (next > now) {
        sleeps_until_ = next;
        woken_.WaitFor(&mutex_, std::min(next - now, kLongestSleep));
        sleeps_until_ = MonotonicTime::FromEpoch(absl::ZeroDuration());  // awake: needs no signal
        continue;
      }
      Outbox outbox;
      EndSilentStreams(now, &outbox);
      if (table_.wake_at() <= now) table_.Tick(now, &outbox);
      aftermath = Deliver(std::move(outbox));
    }
    Finish(aftermath);
  }
}

void Daemon::Shutdown() {
  Aftermath aftermath;
  {
    MutexLock lock(&mutex_);
    shutdown_ = true;
    for (const auto& [id, sink] : sinks_) {
      sink->Queue(Stopping());
      aftermath.sinks.push_back(sink);
    }
    sinks_.clear();
    before_hello_.clear();
    woken_.Signal();
  }
  Finish(aftermath);
  ticker_.Join();
}

}  // namespace convene::rendezvous
