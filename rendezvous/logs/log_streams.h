// The adapters of WatchLogs and PublishLogs: proto and gRPC on this side, the log hub on the other.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/logs/log_hub.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// Each lives until gRPC is done with the call and no thread calls it. Thread-safe.

class WatchStream final : public grpc::ServerWriteReactor<pb::LogNews>, public LogHub::Viewer {
 public:
  // `hub` outlives the call.
  static grpc::ServerWriteReactor<pb::LogNews>* Start(LogHub* hub,
                                                      const pb::WatchLogsRequest& request);

  void Wake() override { WriteNext(); }

 private:
  explicit WatchStream(LogHub* hub) : hub_(hub) {}

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }

  // Called one at a time: after Open, after a write, or when the hub wakes a viewer that was told
  // Nothing. So a write is never under way when the call is finished, and it is finished once.
  void WriteNext();

  LogHub* const hub_;
  std::shared_ptr<WatchStream> self_;  // until OnDone
  WatchId id_;                         // 0: the hub did not open a watch
  pb::LogNews outgoing_;               // of the one write under way
};

class PublishStream final : public grpc::ServerBidiReactor<pb::LogBatch, pb::PublishLogsReply>,
                            public LogHub::Publisher {
 public:
  // `hub` outlives the call.
  static grpc::ServerBidiReactor<pb::LogBatch, pb::PublishLogsReply>* Start(LogHub* hub);

  void Resume() override;
  void End() override;

 private:
  explicit PublishStream(LogHub* hub) : hub_(hub) {}

  void OnReadDone(bool ok) override;
  void OnCancel() override { End(); }
  void OnDone() override;

  LogHub* const hub_;
  std::shared_ptr<PublishStream> self_;  // until OnDone
  // The watch of the first batch; 0 before.
  WatchId watch_;
  AgentId agent_;
  pb::LogBatch incoming_;  // of the one read under way

  Mutex mutex_;
  // Calls of Resume that may be about to read: the call must not be finished then.
  int resuming_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace convene::rendezvous
