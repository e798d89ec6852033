#include "rendezvous/client/log_publication.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/client/dial.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// The longest wait for a call's end: gRPC that cannot start a thread never reports it.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
// A daemon that acknowledges nothing for so long is gone.
constexpr absl::Duration kSilence = absl::Seconds(20);

// The gRPC call. The read under way only waits for the end. At most one write is under way; a hold
// keeps the call alive from outside its reactions, until reading has ended and no write is under
// way.
class Call final : public grpc::ClientBidiReactor<pb::LogBatch, pb::PublishLogsReply> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, std::function<void()> on_end)
      : on_end_(std::move(on_end)), stub_(pb::Rendezvous::NewStub(std::move(channel))) {
    stub_->async()->PublishLogs(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  bool Write(LogBatch batch) {
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

  // When this returns on_end does not run, and will not. False: gRPC has not ended the call in
  // time, and may still use it.
  bool End() {
    {
      MutexLock lock(&mutex_);
      is_silenced_ = true;
    }
    context_.TryCancel();
    const MonotonicTime deadline = Clock::Real().Now() + kEndPatience;
    MutexLock lock(&mutex_);
    while (is_telling_) changed_.Wait(&mutex_);
    while (!is_done_ && WaitUntil(deadline)) {
    }
    return is_done_;
  }

 private:
  bool WaitUntil(MonotonicTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(&mutex_, left);
    return true;
  }

  bool BeginWriting() {
    MutexLock lock(&mutex_);
    if (is_over_) return false;
    is_writing_ = true;
    return true;
  }

  void EndWriting() {
    bool may_release = false;
    {
      MutexLock lock(&mutex_);
      is_writing_ = false;
      may_release = is_over_;
      changed_.SignalAll();
    }
    if (may_release) RemoveHold();
  }

  // The read's end reports a write that failed.
  void OnWriteDone(bool /*ok*/) override { EndWriting(); }
  void OnWritesDoneDone(bool /*ok*/) override { EndWriting(); }

  void OnReadDone(bool ok) override {
    if (ok) return StartRead(&incoming_);
    bool may_release = false;
    bool may_tell = false;
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
      may_release = !is_writing_;
      may_tell = is_telling_ = !is_silenced_;
      changed_.SignalAll();
    }
    if (may_tell) {
      on_end_();
      MutexLock lock(&mutex_);
      is_telling_ = false;
      changed_.SignalAll();
    }
    if (may_release) RemoveHold();
  }

  void OnDone(const grpc::Status& /*status*/) override {
    MutexLock lock(&mutex_);
    is_done_ = true;
    changed_.SignalAll();
  }

  const std::function<void()> on_end_;
  const std::unique_ptr<pb::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  pb::PublishLogsReply incoming_;
  pb::LogBatch outgoing_;  // of the one write under way

  Mutex mutex_;
  CondVar changed_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;      // reading has ended
  bool is_silenced_ ABSL_GUARDED_BY(mutex_) = false;  // on_end is not to be called
  bool is_telling_ ABSL_GUARDED_BY(mutex_) = false;   // on_end runs
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;
};

class GrpcLogPublication final : public LogPublication {
 public:
  explicit GrpcLogPublication(std::unique_ptr<Call> call) : call_(std::move(call)) {}
  // As with an agent's stream: a call that has not ended stays in memory for gRPC, a call that has
  // ended is deleted here.
  ~GrpcLogPublication() override {
    if (!call_->End()) (void)call_.release();
  }

  bool Write(LogBatch batch) override { return call_->Write(std::move(batch)); }
  void Finish(MonotonicTime deadline) override { call_->Finish(deadline); }
  void Cancel() override { call_->Cancel(); }

 private:
  std::unique_ptr<Call> call_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LogPublication>> LogPublication::Open(const std::string& endpoint,
                                                                     absl::Duration timeout,
                                                                     std::function<void()> on_end) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd socket, Dial(endpoint, Clock::Real().Now() + timeout));
  return std::unique_ptr<LogPublication>(std::make_unique<GrpcLogPublication>(
      std::make_unique<Call>(ChannelOver(std::move(socket), kSilence), std::move(on_end))));
}

}  // namespace convene::rendezvous
