#include "rendezvous/attend/attend_stream.h"

#include <utility>

#include "rendezvous/wire/grpc_status.h"
#include "spdlog/spdlog.h"

namespace convene::rendezvous {
namespace {

// The daemon sends a handful of messages in an epoch: an agent that leaves more than this unread
// does not read at all.
constexpr size_t kMostUnread = 256;

}  // namespace

grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* AttendStream::Start(
    Daemon* daemon, Incarnation daemon_incarnation, grpc::CallbackServerContext* context) {
  std::shared_ptr<AttendStream> stream(new AttendStream(daemon, daemon_incarnation, context));
  stream->self_ = stream;
  // Tells the agent at once that a daemon is here, even if its Hello is refused.
  stream->StartSendInitialMetadata();
  stream->id_ = daemon->Open(stream);
  stream->StartRead(&stream->incoming_);
  return stream.get();
}

void AttendStream::Queue(Item item) {
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

void AttendStream::Flush() {
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

void AttendStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    outgoing_.Clear();
    if (!ok) queue_.clear();
  }
  Flush();
}

void AttendStream::Abandon(absl::Status status) {
  daemon_->Disconnect(id_);
  {
    MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = std::move(status);
  }
  Flush();
}

void AttendStream::OnReadDone(bool ok) {
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
    daemon_->Receive(id_, envelope->incarnation, envelope->epoch,
                     std::get<AgentEvent>(envelope->body));
  }
  incoming_.Clear();
  StartRead(&incoming_);
}

void AttendStream::OnCancel() { Abandon(absl::CancelledError("the agent's connection broke")); }

void AttendStream::OnDone() {
  daemon_->Disconnect(id_);
  self_.reset();
}

}  // namespace convene::rendezvous
