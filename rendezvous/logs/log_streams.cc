#include "rendezvous/logs/log_streams.h"

#include <utility>
#include <variant>

#include "rendezvous/wire/grpc_status.h"
#include "rendezvous/wire/wire.h"

namespace convene::rendezvous {

grpc::ServerWriteReactor<pb::LogNews>* WatchStream::Start(LogHub* hub,
                                                          const pb::WatchLogsRequest& request) {
  std::shared_ptr<WatchStream> stream(new WatchStream(hub));
  stream->self_ = stream;
  const absl::StatusOr<LogRequest> parsed = FromWire(request);
  const absl::StatusOr<WatchId> id =
      parsed.ok() ? hub->Open(stream, *parsed) : absl::StatusOr<WatchId>(parsed.status());
  if (id.ok()) {
    stream->id_ = *id;
    stream->WriteNext();
  } else {
    stream->Finish(ToGrpc(id.status()));
  }
  return stream.get();
}

void WatchStream::WriteNext() {
  LogHub::Taken taken = hub_->Take(id_);
  if (auto* news = std::get_if<pb::LogNews>(&taken)) {
    outgoing_ = std::move(*news);
    StartWrite(&outgoing_);
  } else if (const auto* end = std::get_if<absl::Status>(&taken)) {
    const std::shared_ptr<WatchStream> self = self_;
    Finish(ToGrpc(*end));
    hub_->Close(id_);
  }
}

void WatchStream::OnWriteDone(bool ok) {
  if (!ok) hub_->Close(id_);
  WriteNext();
}

void WatchStream::OnCancel() { hub_->Close(id_); }

grpc::ServerBidiReactor<pb::LogBatch, pb::PublishLogsReply>* PublishStream::Start(LogHub* hub) {
  std::shared_ptr<PublishStream> stream(new PublishStream(hub));
  stream->self_ = stream;
  stream->StartRead(&stream->incoming_);
  return stream.get();
}

void PublishStream::OnReadDone(bool ok) {
  if (!ok) return End();
  const WatchId watch(incoming_.watch_id());
  if (watch_ != WatchId() && watch != watch_) return End();  // a call is for one watch
  watch_ = watch;
  agent_ = AgentId(incoming_.agent_id());
  const LogHub::Answer answer = hub_->Publish(self_, std::move(incoming_));
  if (answer == LogHub::Answer::kEnd) return End();
  if (answer == LogHub::Answer::kReadOn) Resume();
}

void PublishStream::Resume() {
  {
    MutexLock lock(&mutex_);
    if (is_ended_) return;
    ++resuming_;
  }
  incoming_.Clear();
  StartRead(&incoming_);
  {
    MutexLock lock(&mutex_);
    --resuming_;
    if (!is_ended_ || is_finished_ || resuming_ > 0) return;
    is_finished_ = true;
  }
  Finish(grpc::Status::OK);
}

void PublishStream::End() {
  {
    MutexLock lock(&mutex_);
    is_ended_ = true;
    if (is_finished_ || resuming_ > 0) return;
    is_finished_ = true;
  }
  Finish(grpc::Status::OK);
}

void PublishStream::OnDone() {
  if (watch_ != WatchId()) hub_->Leave(watch_, agent_, self_);
  self_.reset();
}

}  // namespace convene::rendezvous
