#include "rendezvous/client/agent_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/client/dial.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/wire/grpc_status.h"
#include "rendezvous/wire/wire.h"
#include "spdlog/spdlog.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// An agent sends a handful of messages in an epoch, and a heartbeat now and then.
constexpr size_t kMostUnsent = 4096;
// A listener that breaks off so often before its first answer is no daemon: a daemon that is just
// stopping breaks off once.
constexpr int kMostBreaks = 4;

// The longest wait for a stream's end: gRPC that cannot start a thread never reports it.
constexpr absl::Duration kEndPatience = absl::Seconds(5);

// The gRPC call. At most one write is under way; a hold keeps the call alive from outside its
// reactions, until reading has ended and no write is under way.
class Call final : public grpc::ClientBidiReactor<pb::AgentMessage, pb::DaemonMessage> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, Incarnation incarnation, const Hello& hello,
       AgentStream::Handlers handlers)
      : incarnation_(incarnation),
        handlers_(std::move(handlers)),
        stub_(pb::Rendezvous::NewStub(std::move(channel))) {
    stub_->async()->Attend(&context_, this);
    AddHold();
    StartRead(&incoming_);
    Send(hello.last_epoch, hello);
    StartCall();
  }

  void Send(Epoch epoch, decltype(AgentEnvelope::body) body) {
    Enqueue({incarnation_, epoch, std::move(body)});
  }

  // When this returns no handler runs, and none will. False: gRPC has not ended the call in time,
  // and may still use it.
  bool Cancel() {
    {
      MutexLock lock(&mutex_);
      is_silenced_ = true;
    }
    context_.TryCancel();
    const MonotonicTime deadline = Clock::Real().Now() + kEndPatience;
    MutexLock lock(&mutex_);
    while (!is_done_) {
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left > absl::ZeroDuration()) {
        changed_.WaitFor(&mutex_, left);
      } else if (is_handling_) {
        changed_.Wait(&mutex_);
      } else {
        return false;
      }
    }
    return true;
  }

  // OK once the daemon has answered; DeadlineExceeded; else how the call ended before that.
  absl::Status WaitUntilAnswered(MonotonicTime deadline) {
    MutexLock lock(&mutex_);
    while (!is_answered_ && !is_done_) {
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer");
      changed_.WaitFor(&mutex_, left);
    }
    return is_answered_ ? absl::OkStatus() : end_;
  }

 private:
  void Enqueue(const AgentEnvelope& envelope) {
    {
      MutexLock lock(&mutex_);
      if (has_stopped_reading_) return;
      if (queue_.size() >= kMostUnsent) return context_.TryCancel();
      queue_.push_back(ToWire(envelope));
    }
    WriteNext();
  }

  void WriteNext() {
    {
      MutexLock lock(&mutex_);
      if (is_writing_ || has_stopped_reading_ || queue_.empty()) return;
      outgoing_ = std::move(queue_.front());
      queue_.pop_front();
      is_writing_ = true;
    }
    StartWrite(&outgoing_);
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) MarkAnswered();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      bool may_release = false;
      {
        MutexLock lock(&mutex_);
        has_stopped_reading_ = true;
        may_release = !is_writing_;
      }
      if (may_release) RemoveHold();
      return;
    }
    MarkAnswered();
    absl::StatusOr<DaemonEvent> event = FromWire(incoming_);
    if (daemon_ == Incarnation()) daemon_ = Incarnation(incoming_.incarnation());
    if (Incarnation(incoming_.incarnation()) != daemon_) {
      Refuse(absl::UnavailableError(absl::StrCat(
          "on the stream to daemon ", daemon_.value(), " a message of daemon ",
          incoming_.incarnation(), " arrived: something between the two mixes connections up")));
    } else if (absl::IsUnimplemented(event.status())) {
      if (!std::exchange(has_ignored_, true))
        spdlog::warn("{}", std::string(event.status().message()));
    } else if (!event.ok()) {
      Refuse(event.status());
    } else if (MayHandle()) {
      handlers_.on_event(*std::move(event));
      MarkHandled();
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool /*ok*/) override {
    bool may_release = false;
    {
      MutexLock lock(&mutex_);
      is_writing_ = false;
      may_release = has_stopped_reading_;
    }
    // The reads' end reports a write that failed.
    may_release ? RemoveHold() : WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Status end = refusal_.ok() ? FromGrpc(status) : refusal_;
    if (WasAnswered() && MayHandle()) {
      handlers_.on_end(end);
      MarkHandled();
    }
    MutexLock lock(&mutex_);
    end_ = end;
    is_done_ = true;
    changed_.SignalAll();
  }

  // Ends the call, because the daemon's messages make no sense.
  void Refuse(absl::Status why) {
    if (refusal_.ok()) refusal_ = std::move(why);
    context_.TryCancel();
  }

  void MarkAnswered() {
    MutexLock lock(&mutex_);
    is_answered_ = true;
    changed_.SignalAll();
  }

  bool WasAnswered() {
    MutexLock lock(&mutex_);
    return is_answered_;
  }

  // When true, a handler is about to run, and MarkHandled follows.
  bool MayHandle() {
    MutexLock lock(&mutex_);
    is_handling_ = !is_silenced_;
    return is_handling_;
  }

  void MarkHandled() {
    MutexLock lock(&mutex_);
    is_handling_ = false;
    changed_.SignalAll();
  }

  const Incarnation incarnation_;
  const AgentStream::Handlers handlers_;
  const std::unique_ptr<pb::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  pb::DaemonMessage incoming_;  // of the one read under way
  // Used by the reads, which end before OnDone.
  Incarnation daemon_;  // the speaker of the first message
  bool has_ignored_ = false;
  absl::Status refusal_;
  pb::AgentMessage outgoing_;  // of the one write under way

  Mutex mutex_;
  CondVar changed_;
  std::deque<pb::AgentMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_stopped_reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_silenced_ ABSL_GUARDED_BY(mutex_) = false;  // no more handlers
  bool is_handling_ ABSL_GUARDED_BY(mutex_) = false;  // a handler runs
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

class GrpcAgentStream final : public AgentStream {
 public:
  GrpcAgentStream(std::unique_ptr<Call> call, MonotonicTime opened_at, std::string own_host,
                  UniqueFd connection)
      : call_(std::move(call)),
        opened_at_(opened_at),
        own_host_(std::move(own_host)),
        connection_(std::move(connection)) {}
  // A call without an end stays in memory, rather than be gone when gRPC comes back to it. A call
  // that has ended dies here and not in OnDone: the channel's end joins the thread that OnDone runs
  // on.
  ~GrpcAgentStream() override {
    if (!call_->Cancel()) (void)call_.release();
  }

  MonotonicTime opened_at() const override { return opened_at_; }
  const std::string& own_host() const override { return own_host_; }
  UniqueFd TakeConnection() override { return std::move(connection_); }
  void Send(Epoch epoch, AgentEvent event) override { call_->Send(epoch, std::move(event)); }
  absl::Status WaitUntilAnswered(MonotonicTime deadline) {
    return call_->WaitUntilAnswered(deadline);
  }

 private:
  std::unique_ptr<Call> call_;
  const MonotonicTime opened_at_;
  const std::string own_host_;
  UniqueFd connection_;
};

absl::Status NotADaemon(const std::string& endpoint, const absl::Status& cause) {
  return absl::FailedPreconditionError(
      absl::StrCat("the program that listens at ", endpoint, " is no rendezvous daemon (",
                   std::string(cause.message()), "): is the port right?"));
}

}  // namespace

std::optional<MonotonicTime> AgentStream::RefusedAt(const absl::Status& opened) {
  return DialRefusedAt(opened);
}

absl::StatusOr<std::unique_ptr<AgentStream>> AgentStream::Open(const std::string& endpoint,
                                                               Incarnation incarnation, Hello hello,
                                                               const Handlers& handlers,
                                                               absl::Duration connect_timeout) {
  const MonotonicTime deadline = Clock::Real().Now() + connect_timeout;
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(2));
  for (int breaks = 1;; ++breaks) {
    CONVENE_ASSIGN_OR_RETURN(UniqueFd socket, Dial(endpoint, deadline));
    const MonotonicTime opened_at = hello.said_at = Clock::Real().Now();
    std::string own_host = OwnHost(socket.get());
    UniqueFd connection(fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
    auto stream = std::make_unique<GrpcAgentStream>(
        std::make_unique<Call>(ChannelOver(std::move(socket), hello.lease), incarnation, hello,
                               handlers),
        opened_at, std::move(own_host), std::move(connection));
    const absl::Status answered = stream->WaitUntilAnswered(deadline);
    if (answered.ok()) return std::unique_ptr<AgentStream>(std::move(stream));
    if (absl::IsUnimplemented(answered)) return NotADaemon(endpoint, answered);
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat(
          endpoint, " took the connection but did not answer as a rendezvous daemon within ",
          absl::FormatDuration(connect_timeout), " (", std::string(answered.message()), ")"));
    }
    if (breaks == kMostBreaks) return NotADaemon(endpoint, answered);
    Clock::Real().SleepFor(std::min(left, backoff.Next(RandomFraction())));
  }
}

}  // namespace convene::rendezvous
