// Agents of a benchmark: as many gRPC streams to one daemon, each with a connection of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/mutex.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// The first words of agent `i` of `agents`, in the job "bench".
Hello BenchHello(size_t i, size_t agents);
Heartbeat BenchHeartbeat();

// Not thread-safe.
class BenchAgents {
 public:
  // Of the daemon at this port of the loopback. Nothing happens until Join.
  BenchAgents(int port, int count);

  // All at once, and until each has its rank. False when one of them could not join in 2 min; what
  // happened stands on stderr.
  bool Join();
  // `a_second` in all for `duration`, evenly, from one agent after the other. How many were sent.
  int SendHeartbeats(int a_second, absl::Duration duration);
  // The job succeeds, and the daemon ends all streams. False when it did not in 2 min.
  bool Finish();
  // How many streams the daemon, or the connection, ended before Finish.
  int lost() const;

 private:
  void DialEvery(int first);
  void OnEvent(const DaemonEvent& event);
  void OnEnd(const absl::Status& status);
  // Until *count says as many as there are agents.
  bool WaitForAll(const size_t* count, const char* what);

  const std::string endpoint_;
  mutable Mutex mutex_;
  CondVar changed_;
  size_t assigned_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_finishing_ ABSL_GUARDED_BY(mutex_) = false;
  int lost_ ABSL_GUARDED_BY(mutex_) = 0;
  Epoch epoch_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<AgentStream>> agents_;  // each written by one dialer
};

}  // namespace convene::rendezvous
