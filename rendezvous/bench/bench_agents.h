// Agents of a benchmark: as many gRPC streams to one daemon, each with a connection of its own.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// The Hello of agent `i` of `agents`, in the job "bench".
Hello BenchHello(size_t i, size_t agents, int ranks = 1);
// `ranks` above 1: each of them tells its times, at `step`.
Heartbeat BenchHeartbeat(int64_t step = 123456, int ranks = 1);

// Not thread-safe.
class BenchAgents {
 public:
  // Agents of the daemon there, each with so many ranks. Nothing happens until Join.
  BenchAgents(Endpoint endpoint, int count, int ranks = 1);

  // All agents join at once; returns when each has its rank. False when one of them could not join
  // in 2 min; stderr says why.
  bool Join();
  // Sends `a_second` heartbeats in all for `duration`, evenly, from one agent after the other.
  // Returns the number sent.
  int SendHeartbeats(int a_second, absl::Duration duration);
  // From each heartbeat to its answer, of the answers since the last call.
  std::vector<absl::Duration> TakeAnswerTimes();
  // Lets the job succeed, so that the daemon ends all streams. False when it did not within 2 min.
  bool Finish();
  // The number of streams that the daemon, or the connection, ended before Finish.
  int lost() const;

 private:
  void DialEvery(int first);
  void OnEvent(size_t agent, const DaemonEvent& event);
  void OnEnd(const absl::Status& status);
  // Waits until *count is the number of agents.
  bool WaitForAll(const size_t* count, const char* what);

  const Endpoint endpoint_;
  const int ranks_;
  mutable Mutex mutex_;
  CondVar changed_;
  size_t assigned_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_finishing_ ABSL_GUARDED_BY(mutex_) = false;
  int lost_ ABSL_GUARDED_BY(mutex_) = 0;
  Epoch epoch_ ABSL_GUARDED_BY(mutex_);
  // Of each agent's heartbeats without an answer, oldest first.
  std::vector<std::deque<MonotonicTime>> sent_at_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Duration> answer_times_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<AgentStream>> agents_;  // each written by one dialer
};

}  // namespace convene::rendezvous
