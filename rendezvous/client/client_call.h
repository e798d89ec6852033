// The part that an agent's two kinds of calls have in common.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// A call whose user has handlers. At most one write is under way; a hold keeps the call alive from
// outside its reactions, until reading has ended and no write is under way.
template <typename Out, typename In>
class ClientCall : public grpc::ClientBidiReactor<Out, In> {
 public:
  // Cancels the call. When this returns no handler runs, and none will. False: gRPC has not ended
  // the call in time, and may still use it.
  bool End() {
    {
      MutexLock lock(&mutex_);
      is_silenced_ = true;
    }
    context_.TryCancel();
    const MonotonicTime deadline = Clock::Real().Now() + kEndPatience;
    MutexLock lock(&mutex_);
    while (is_handling_) changed_.Wait(&mutex_);
    while (!is_done_ && WaitUntil(deadline)) {
    }
    return is_done_;
  }

 protected:
  // `on_end` is a handler, called once.
  ClientCall(std::shared_ptr<grpc::Channel> channel,
             std::function<void(const grpc::Status&)> on_end)
      : on_end_(std::move(on_end)), stub_(pb::Rendezvous::NewStub(std::move(channel))) {}

  // Waits for a signal; false when `deadline` is over.
  bool WaitUntil(MonotonicTime deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(&mutex_, left);
    return true;
  }

  // Runs a handler, unless the call was ended by its user.
  template <typename Handler>
  void Handle(const Handler& handler) {
    {
      MutexLock lock(&mutex_);
      if (is_silenced_) return;
      is_handling_ = true;
    }
    handler();
    MutexLock lock(&mutex_);
    is_handling_ = false;
    changed_.SignalAll();
  }

  // Reading has ended.
  void EndReading() {
    bool may_release = false;
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
      may_release = !is_writing_;
      changed_.SignalAll();
    }
    if (may_release) this->RemoveHold();
  }

  // A write has ended; the reads' end reports one that failed. False: the call is over.
  bool EndWriting() {
    bool is_over = false;
    {
      MutexLock lock(&mutex_);
      is_writing_ = false;
      is_over = is_over_;
      changed_.SignalAll();
    }
    if (is_over) this->RemoveHold();
    return !is_over;
  }

  void OnDone(const grpc::Status& status) final {
    Handle([&] { on_end_(status); });
    MutexLock lock(&mutex_);
    is_done_ = true;
    changed_.SignalAll();
  }

  const std::function<void(const grpc::Status&)> on_end_;
  const std::unique_ptr<pb::Rendezvous::Stub> stub_;
  grpc::ClientContext context_;
  In incoming_;   // of the one read under way
  Out outgoing_;  // of the one write under way

  Mutex mutex_;
  CondVar changed_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;      // reading has ended
  bool is_silenced_ ABSL_GUARDED_BY(mutex_) = false;  // no more handlers
  bool is_handling_ ABSL_GUARDED_BY(mutex_) = false;  // a handler runs
  bool is_done_ ABSL_GUARDED_BY(mutex_) = false;

 private:
  // The longest wait for a call's end: gRPC that cannot start a thread never reports it.
  static constexpr absl::Duration kEndPatience = absl::Seconds(5);
};

// Ends a call. A call that did not end in time stays in memory, because gRPC may still come back to
// it. A call that has ended is deleted here and not in OnDone: the channel's end joins the thread
// that OnDone runs on.
struct CallEnder {
  template <typename Call>
  void operator()(Call* call) const {
    if (call->End()) delete call;
  }
};

}  // namespace convene::rendezvous
