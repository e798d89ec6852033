#include "rendezvous/client/log_publication.h"

#include <utility>

#include "rendezvous/client/client_call.h"
#include "rendezvous/client/dial.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// The read under way only waits for the end.
class Call final : public ClientCall<pb::LogBatch, pb::PublishLogsReply> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, const std::function<void()>& on_end)
      : ClientCall(std::move(channel), [on_end](const grpc::Status&) { on_end(); }) {
    stub_->async()->PublishLogs(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  bool Write(const LogBatch& batch) {
    if (!BeginWriting()) return false;
    outgoing_ = ToWire(batch);
    StartWrite(&outgoing_);
    MutexLock lock(&mutex_);
    while (is_writing_) changed_.Wait(&mutex_);
    return !is_over_;
  }

  void Finish(MonotonicTime deadline) {
    if (!BeginWriting()) return;
    StartWritesDone();
    MutexLock lock(&mutex_);
    while (!is_over_ && WaitUntil(deadline)) {
    }
  }

  void Cancel() { context_.TryCancel(); }

 private:
  bool BeginWriting() {
    MutexLock lock(&mutex_);
    if (is_over_) return false;
    is_writing_ = true;
    return true;
  }

  void OnWriteDone(bool /*ok*/) override { EndWriting(); }
  void OnWritesDoneDone(bool /*ok*/) override { EndWriting(); }
  void OnReadDone(bool ok) override { ok ? StartRead(&incoming_) : EndReading(); }
};

class GrpcLogPublication final : public LogPublication {
 public:
  GrpcLogPublication(Endpoint endpoint, Connection connection, const std::function<void()>& on_end)
      : endpoint_(std::move(endpoint)),
        call_(new Call(ChannelOver(std::move(connection), kLogSilence), on_end)) {}

  bool Write(const LogBatch& batch) override { return call_->Write(batch); }
  void Finish(MonotonicTime deadline) override { call_->Finish(deadline); }
  void Cancel() override { call_->Cancel(); }

 private:
  const Endpoint endpoint_;  // it carries the connection's TLS
  const std::unique_ptr<Call, CallEnder> call_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LogPublication>> LogPublication::Open(
    const Endpoint& endpoint, absl::Duration timeout, const std::function<void()>& on_end) {
  CONVENE_ASSIGN_OR_RETURN(Connection connection, Dial(endpoint, Clock::Real().Now() + timeout));
  return std::make_unique<GrpcLogPublication>(endpoint, std::move(connection), on_end);
}

}  // namespace convene::rendezvous
