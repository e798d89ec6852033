#include "rendezvous/client/agent_stream.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/client/client_call.h"
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
// A listener that has said something and breaks off so often before a daemon's first answer is no
// daemon: a daemon that is just stopping breaks off once.
constexpr int kMostBreaks = 4;

// Whether a byte has come over the TCP connection, which may be over. The kernel counts the other
// side's end as a byte.
bool HasHeard(int tcp) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  return getsockopt(tcp, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
         info.tcpi_bytes_received > 1;
}

class Call final : public ClientCall<pb::AgentMessage, pb::DaemonMessage> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, Incarnation incarnation, const Hello& hello,
       AgentStream::Handlers handlers)
      : ClientCall(std::move(channel), [this](const grpc::Status& status) { Tell(status); }),
        incarnation_(incarnation),
        handlers_(std::move(handlers)) {
    stub_->async()->Attend(&context_, this);
    AddHold();
    StartRead(&incoming_);
    Send(hello.last_epoch, hello);
    StartCall();
  }

  void Send(Epoch epoch, decltype(AgentEnvelope::body) body) {
    {
      MutexLock lock(&mutex_);
      if (is_over_) return;
      if (queue_.size() >= kMostUnsent) return context_.TryCancel();
      queue_.push_back(ToWire({incarnation_, epoch, std::move(body)}));
    }
    WriteNext();
  }

  // OK once the daemon has answered; DeadlineExceeded; else how the call ended before that.
  absl::Status WaitUntilAnswered(MonotonicTime deadline) {
    MutexLock lock(&mutex_);
    while (!is_answered_ && !is_done_) {
      if (!WaitUntil(deadline)) return absl::DeadlineExceededError("no answer");
    }
    return is_answered_ ? absl::OkStatus() : end_;
  }

 private:
  void WriteNext() {
    {
      MutexLock lock(&mutex_);
      if (is_writing_ || is_over_ || queue_.empty()) return;
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
    if (!ok) return EndReading();
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
    } else {
      Handle([&] { handlers_.on_event(*std::move(event)); });
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool /*ok*/) override {
    if (EndWriting()) WriteNext();
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

  void Tell(const grpc::Status& status) {
    const absl::Status end = refusal_.ok() ? FromGrpc(status) : refusal_;
    {
      MutexLock lock(&mutex_);
      end_ = end;
      if (!is_answered_) return;
    }
    handlers_.on_end(end);
  }

  const Incarnation incarnation_;
  const AgentStream::Handlers handlers_;
  // Used by the reads, which end before OnDone.
  Incarnation daemon_;  // the speaker of the first message
  bool has_ignored_ = false;
  absl::Status refusal_;

  std::deque<pb::AgentMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool is_answered_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

class GrpcAgentStream final : public AgentStream {
 public:
  // Says the hello over `connection`.
  GrpcAgentStream(Endpoint endpoint, Connection connection, Incarnation incarnation,
                  const Hello& hello, const Handlers& handlers)
      : endpoint_(std::move(endpoint)),
        opened_at_(hello.said_at),
        own_host_(OwnHost(connection.transport.get())),
        connection_(fcntl(connection.transport.get(), F_DUPFD_CLOEXEC, 3)),
        call_(new Call(ChannelOver(std::move(connection), hello.lease), incarnation, hello,
                       handlers)) {}

  MonotonicTime opened_at() const override { return opened_at_; }
  const std::string& own_host() const override { return own_host_; }
  UniqueFd TakeConnection() override { return std::move(connection_); }
  bool HasHeard() const { return rendezvous::HasHeard(connection_.get()); }
  void Send(Epoch epoch, AgentEvent event) override { call_->Send(epoch, std::move(event)); }
  absl::Status WaitUntilAnswered(MonotonicTime deadline) {
    return call_->WaitUntilAnswered(deadline);
  }

 private:
  const Endpoint endpoint_;  // it carries the connection's TLS
  const MonotonicTime opened_at_;
  const std::string own_host_;
  UniqueFd connection_;
  const std::unique_ptr<Call, CallEnder> call_;
};

absl::Status NotADaemon(const Endpoint& endpoint, const absl::Status& cause) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the program that listens at ", endpoint.address(), " is no rendezvous daemon",
      endpoint.is_locked() ? " (" : " for clients without a join token and a certificate (",
      std::string(cause.message()),
      endpoint.is_locked()
          ? "): is the port right?"
          : "): is the port right, or is --join-token-file or --tls-cert wanted?"));
}

absl::Status NoAnswer(const Endpoint& endpoint, absl::Duration timeout, const absl::Status& cause) {
  const bool is_once = endpoint.dialling().is_once;
  const bool was_closed = !is_once && absl::IsUnavailable(cause);
  return absl::UnavailableError(absl::StrCat(
      is_once ? "it" : endpoint.address(),
      " took the connection but did not answer as a rendezvous daemon within ",
      absl::FormatDuration(timeout), " (", std::string(cause.message()), ")",
      was_closed ? ": it closes each connection, as a proxy or a load balancer does while nobody "
                   "listens behind it. If it is none, look whether the port is right"
                 : "",
      was_closed && !endpoint.is_locked()
          ? ", and whether the daemon wants --join-token-file or --tls-cert"
          : ""));
}

}  // namespace

std::optional<MonotonicTime> AgentStream::RefusedAt(const absl::Status& opened) {
  const auto payload = opened.GetPayload(kRefusedAt);
  int64_t nanoseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &nanoseconds)) {
    return std::nullopt;
  }
  return MonotonicTime::FromEpoch(absl::Nanoseconds(nanoseconds));
}

absl::StatusOr<std::unique_ptr<AgentStream>> AgentStream::Open(const Endpoint& endpoint,
                                                               Incarnation incarnation, Hello hello,
                                                               const Handlers& handlers,
                                                               absl::Duration connect_timeout,
                                                               bool is_listened_to_here) {
  const MonotonicTime deadline = Clock::Real().Now() + connect_timeout;
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(2));
  absl::Status mute;  // of the last try at a listener that closed the connection without a byte
  for (int breaks = 0;;) {
    absl::StatusOr<Connection> connection = Dial(endpoint, deadline);
    if (!connection.ok()) {
      const bool is_refused = RefusedAt(connection.status()).has_value();
      return mute.ok() || is_refused ? connection.status()
                                     : NoAnswer(endpoint, connect_timeout, mute);
    }
    hello.said_at = Clock::Real().Now();
    auto stream = std::make_unique<GrpcAgentStream>(endpoint, *std::move(connection), incarnation,
                                                    hello, handlers);
    const absl::Status answered = stream->WaitUntilAnswered(deadline);
    if (answered.ok()) return std::unique_ptr<AgentStream>(std::move(stream));
    if (absl::IsUnimplemented(answered)) return NotADaemon(endpoint, answered);
    if (absl::IsPermissionDenied(answered)) {
      return Annotate(answered, absl::StrCat("the rendezvous at ", endpoint.address()));
    }
    // It may be a proxy that finds nobody behind it yet.
    const bool is_mute = !stream->HasHeard() && !is_listened_to_here;
    const absl::Duration left = deadline - Clock::Real().Now();
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (left <= absl::ZeroDuration() || endpoint.dialling().is_once || (is_mute && pause >= left))
      return NoAnswer(endpoint, connect_timeout, answered);
    if (!is_mute && ++breaks == kMostBreaks) return NotADaemon(endpoint, answered);
    if (is_mute) mute = answered;
    Clock::Real().SleepFor(std::min(left, pause));
  }
}

}  // namespace convene::rendezvous
