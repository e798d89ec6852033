#include "rendezvous/attend/attend_stream.h"

#include <algorithm>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "rendezvous/net/peer_address.h"
#include "rendezvous/wire/grpc_status.h"
#include "spdlog/spdlog.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {
namespace {

// The daemon sends a handful of messages in an epoch: an agent that leaves more than this unread
// does not read at all.
constexpr size_t kMostUnread = 256;

// A node behind a translation of addresses does not know the one by which others see it, and the
// store may see another one than the daemon does: a wrong refusal would break the run.
void ForgetTranslated(const grpc::CallbackServerContext& context, AgentEvent* event) {
  auto* const ready = std::get_if<Ready>(event);
  if (ready == nullptr) return;
  const std::string seen = HostOfPeer(context.peer());
  const bool is_known = std::count(ready->addresses.begin(), ready->addresses.end(), seen) > 0;
  if (!is_known && !IsLoopback(seen)) ready->addresses.clear();
}

// Lives until gRPC is done with the call and no thread flushes it. At most one write is under way;
// the end of the stream is the last thing sent. Thread-safe.
class AttendStream final : public grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>,
                           public StreamSink {
 public:
  AttendStream(Daemon* daemon, Incarnation daemon_incarnation, grpc::CallbackServerContext* context)
      : daemon_(daemon), daemon_incarnation_(daemon_incarnation), context_(context) {}

  void Start(std::shared_ptr<AttendStream> self) {
    self_ = std::move(self);
    // Tells the agent at once that a daemon is here, even if its Hello is refused.
    StartSendInitialMetadata();
    id_ = daemon_->Open(self_);
    StartRead(&incoming_);
  }

  void Queue(Item item) override {
    bool is_stuck = false;
    {
      MutexLock lock(&mutex_);
      if (end_.has_value()) return;
      if (auto* event = std::get_if<DaemonEvent>(&item)) {
        queue_.push_back(ToWire(daemon_incarnation_, *event));
        is_stuck = queue_.size() > kMostUnread;
      } else {
        end_ = std::get<absl::Status>(std::move(item));
      }
    }
    if (is_stuck) context_->TryCancel();
  }

  void Flush() override {
    std::optional<absl::Status> end;
    {
      MutexLock lock(&mutex_);
      if (writing_ || finished_) return;
      if (!queue_.empty()) {
        outgoing_ = std::move(queue_.front());
        queue_.pop_front();
        writing_ = true;
      } else if (end_.has_value()) {
        finished_ = true;
        end = end_;
      } else {
        return;
      }
    }
    if (end.has_value()) {
      Finish(ToGrpc(*end));
    } else {
      StartWrite(&outgoing_);
    }
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Abandon(absl::CancelledError("the agent closed its stream without a Leave"));
    absl::StatusOr<AgentEnvelope> envelope = FromWire(incoming_);
    if (absl::IsUnimplemented(envelope.status())) {
      if (!std::exchange(has_ignored_, true))
        spdlog::warn("{}", std::string(envelope.status().message()));
    } else if (!envelope.ok()) {
      return Abandon(envelope.status());
    } else if (const auto* hello = std::get_if<Hello>(&envelope->body)) {
      daemon_->Join(id_, envelope->incarnation, *hello);
    } else {
      auto& event = std::get<AgentEvent>(envelope->body);
      ForgetTranslated(*context_, &event);
      daemon_->Receive(id_, envelope->incarnation, envelope->epoch, event);
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      outgoing_.Clear();
      if (!ok) queue_.clear();
    }
    Flush();
  }

  void OnCancel() override { Abandon(absl::CancelledError("the agent's connection broke")); }

  void OnDone() override {
    daemon_->Disconnect(id_);
    self_.reset();
  }

  // Makes the daemon forget this stream; nothing more is sent but `status`.
  void Abandon(absl::Status status) {
    daemon_->Disconnect(id_);
    {
      MutexLock lock(&mutex_);
      if (!end_.has_value()) end_ = std::move(status);
    }
    Flush();
  }

  Daemon* const daemon_;
  const Incarnation daemon_incarnation_;
  grpc::CallbackServerContext* const context_;
  MemberId id_;
  std::shared_ptr<AttendStream> self_;  // until OnDone
  pb::AgentMessage incoming_;           // of the one read under way
  bool has_ignored_ = false;            // a message of a kind that this version does not know

  Mutex mutex_;
  // A list, because it is mostly empty, and there are thousands of streams.
  std::list<pb::DaemonMessage> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // comes after queue_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  pb::DaemonMessage outgoing_;  // of the one write under way
};

}  // namespace

grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* StartAttendStream(
    Daemon* daemon, Incarnation daemon_incarnation, grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<AttendStream>(daemon, daemon_incarnation, context);
  stream->Start(stream);
  return stream.get();
}

}  // namespace convene::rendezvous
