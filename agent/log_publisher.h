// Publishes the workers' lines to viewers, through the rendezvous.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "agent/output/recent_lines.h"
#include "rendezvous/client/log_publication.h"
#include "rendezvous/quorum/log_lines.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"

namespace convene::agent {

// Nothing runs without a viewer. Each viewer has a thread "publish-logs", which dials, reads the
// lines and waits for the network; it never delays workers, console and heartbeats. The methods are
// called from one thread.
class LogPublisher {
 public:
  // More viewers are not served. Twice as many as the daemon lets in (rendezvous/logs/log_hub.h):
  // viewers that end and viewers that begin may overlap.
  static constexpr size_t kMostAtOnce = 16;

  struct Node {
    rendezvous::AgentId agent;
    std::string host;
    std::string role;
  };

  // `lines` outlives the publisher.
  LogPublisher(RecentLines& lines, Node node);
  // Cancels running publications; waits for one that is dialling, at most 3 s.
  ~LogPublisher();
  LogPublisher(const LogPublisher&) = delete;
  LogPublisher& operator=(const LogPublisher&) = delete;

  // `endpoint`: of the rendezvous that asks.
  void Publish(const rendezvous::LogsWanted& wanted, const rendezvous::Endpoint& endpoint);
  // No line will follow: waits for at most `patience` until the viewers have the rest.
  void Finish(absl::Duration patience);

 private:
  struct Publication {
    std::shared_ptr<RecentLines::Reader> reader;
    rendezvous::LogPublication* call = nullptr;  // while it is open; the publisher's lock guards it
    bool is_done = false;                        // too
    Thread thread;
  };

  // Runs on the publication's thread.
  void Run(Publication* publication, rendezvous::WatchId watch,
           const rendezvous::Endpoint& endpoint) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(Publication* publication, rendezvous::LogPublication* call, rendezvous::WatchId watch)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Reap() ABSL_LOCKS_EXCLUDED(mutex_);

  RecentLines& lines_;
  const Node node_;
  std::list<Publication> publications_;  // of the caller's thread; they stay where they are

  Mutex mutex_;
  CondVar changed_;  // a publication is done
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace convene::agent
