// Between the agents that publish their workers' lines and the people who look at them.
//
//   agent ══ PublishLogs ══ Publisher ─► LogHub: a short queue a viewer ─► Viewer ══ WatchLogs ══
//   convene logs
//
// Each viewer has a watch of its own, and each agent of its run a call of PublishLogs for it: the
// agent knows which lines this viewer has not seen, and counts the lines that it loses. The hub
// drops nothing. While a viewer's queue is full, the hub does not read from its publishers; the
// agents' rings go round meanwhile. For a viewer that does not read, the daemon keeps its queue,
// and for each agent one batch and the bytes that gRPC takes in advance (64 KiB).
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/logs/log_agents.h"
#include "rendezvous/quorum/log_lines.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// Thread-safe. Calls viewers and publishers without its lock.
class LogHub {
 public:
  static constexpr size_t kMostViewers = 64;
  static constexpr size_t kMostViewersPerRun = 8;  // an agent publishes for no more
  static constexpr size_t kFullQueueBytes = 256 * 1024;

  // The daemon's end of a WatchLogs call.
  class Viewer {
   public:
    virtual ~Viewer() = default;
    // Called when the last Take returned Nothing and the next will not. From any thread.
    virtual void Wake() = 0;
  };
  // The daemon's end of a PublishLogs call.
  class Publisher {
   public:
    virtual ~Publisher() = default;
    // Called after kWait: the publisher may read on. From any thread.
    virtual void Resume() = 0;
    // The viewer is gone. From any thread; perhaps more than once.
    virtual void End() = 0;
  };
  // `agents` outlives the hub.
  explicit LogHub(LogAgents* agents) : agents_(agents) {}
  LogHub(const LogHub&) = delete;
  LogHub& operator=(const LogHub&) = delete;

  // The errors of LogAgents::WatchLogs; ResourceExhausted when there are too many viewers already.
  // The viewer calls Take from now on until Take returns the end, and then, or when it goes
  // earlier, Close.
  absl::StatusOr<WatchId> Open(std::shared_ptr<Viewer> viewer, const LogRequest& request);
  struct Nothing {};  // Wake follows
  using Taken = std::variant<pb::LogNews, Nothing, absl::Status>;
  // A status is the end of the call. One caller at a time.
  Taken Take(WatchId watch);
  // Ends the watch's publishers; a later Take returns Cancelled, and a waiting viewer is woken for
  // it. Does nothing for a watch that does not exist.
  void Close(WatchId watch);

  enum class Answer { kReadOn, kWait, kEnd };
  Answer Publish(const std::shared_ptr<Publisher>& publisher, pb::LogBatch batch);
  // Called once, after the publisher's first Publish. The hub does not call the publisher any more.
  void Leave(WatchId watch, AgentId agent, const std::shared_ptr<Publisher>& publisher);

  // The run of this watch is over.
  void EndRun(WatchId watch, const RunEnded& ended);

  // The daemon stops. A watch ends with Unavailable when its queue has been taken. The watch of a
  // run that is over also waits until its last publisher has left, and ends with OK.
  void Shutdown();

 private:
  struct Watch {
    std::string job_id;
    std::shared_ptr<Viewer> viewer;
    bool is_idle = false;  // its last Take said Nothing
    std::deque<pb::LogNews> queue;
    size_t queued_bytes = 0;
    std::set<std::shared_ptr<Publisher>> publishers;
    std::deque<std::shared_ptr<Publisher>> waiting;  // for room in the queue, the longest first
    bool is_run_over = false;
  };
  using Watches = std::map<WatchId, Watch>;
  // The calls that are owed; the destructor makes them. REQUIRES: it is declared before the lock,
  // so that the lock is released by then.
  struct Calls {
    ~Calls();
    std::vector<std::shared_ptr<Viewer>> wake;
    std::vector<std::shared_ptr<Publisher>> resume;
    std::vector<std::shared_ptr<Publisher>> end;
  };

  absl::Status CheckRoom(const std::string& job_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Push(pb::LogNews news, Watch* watch, Calls* calls);
  static void Wake(Watch* watch, Calls* calls);
  // Whether no news follows once the queue is empty.
  bool IsAtEnd(const Watch& watch) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Remove(Watches::iterator watch, Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LogAgents* const agents_;
  Mutex mutex_;
  Watches watches_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace convene::rendezvous
