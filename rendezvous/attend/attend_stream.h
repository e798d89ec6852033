// The adapter of one Attend call: proto and gRPC on this side, values and the daemon on the other.
#pragma once

#include <list>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// Lives until gRPC is done with the call and no thread flushes it. At most one write is under way;
// the end of the stream is the last thing sent. Thread-safe.
class AttendStream final : public grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>,
                           public StreamSink {
 public:
  // `daemon` outlives the call.
  static grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* Start(
      Daemon* daemon, Incarnation daemon_incarnation, grpc::CallbackServerContext* context);

  void Queue(Item item) override;
  void Flush() override;

 private:
  AttendStream(Daemon* daemon, Incarnation daemon_incarnation, grpc::CallbackServerContext* context)
      : daemon_(daemon), daemon_incarnation_(daemon_incarnation), context_(context) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // Makes the daemon forget this stream; nothing more is sent but `status`.
  void Abandon(absl::Status status);

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

}  // namespace convene::rendezvous
