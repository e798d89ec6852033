// The worker processes of one epoch on this node.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/core/exit_classifier.h"
#include "agent/process/console.h"
#include "agent/process/custody.h"
#include "agent/process/event_loop.h"
#include "agent/process/output_pump.h"
#include "agent/process/spawn.h"
#include "tools/base/clock.h"

namespace convene::agent {

// A worker's life:
//
//   running ──leader ended──► draining ──output at its end, or 200 ms passed──► gone
//
// When the leader ends by itself, what is left of its process group is killed. When it ends after
// Stop, the rest of the group has until Kill to finish its work (a shell that died of the signal
// while the program it started still saves), as long as it holds the output. A grandchild that
// moved to a group of its own may hold the output for 200 ms more. When the last worker is gone,
// all that any of them left anywhere is killed, and on_gone waits until it is dead, for at most 2
// s: what it held (a GPU's memory, a port) is free for the next epoch.
//
// Lives on the thread of its loop, which is the main one (spawn.h says why).
class WorkerGroup {
 public:
  struct Worker {
    std::vector<std::string> environment;
    StreamOutput out;
    StreamOutput err;
    std::vector<int> cpus;  // SpawnRequest's
  };
  struct Exit {
    int local_rank = 0;
    pid_t pid = 0;
    ExitStatus status;
    std::vector<std::string> last_log_lines;  // of stderr; of stdout when that is empty
  };
  struct Listener {
    std::function<void(Exit)> on_exit;  // a leader ended; what it wrote has been read
    std::function<void()> on_gone;      // the last worker is gone; once
  };

  // The listener's functions must not destroy the group.
  WorkerGroup(EventLoop& loop, Console& console, Custody& custody, Listener listener);
  // Kills what is left and reaps it.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Spawns worker i of `workers` as local rank i. After an error (as Spawn's) those before it run:
  // Stop or Kill them, on_gone follows (also when there was none). Call once.
  absl::Status Start(const std::string& program, const std::vector<std::string>& arguments,
                     const std::vector<Worker>& workers);

  // `signal` to every process of the groups of the workers that `chosen` names (by local rank).
  void Stop(int signal, const std::function<bool(int)>& chosen);
  // SIGKILL to all that is left.
  void Kill();
  // `signal` to every process of every group; changes nothing else.
  void PassOn(int signal);
  // Custody's on_orphan_ended.
  void OnOrphanEnded();

  // The console's readers are slow: let the workers wait, or go on.
  void SetPaused(bool paused);
  // The log disk may have room again for the output of workers that wait for it.
  void OnDiskRelief();

  MonotonicTime next_deadline() const;
  void OnTime(MonotonicTime now);

  bool gone() const { return gone_; }
  std::vector<pid_t> pids() const;  // by local rank
  // As Exit's, up to now. REQUIRES: the worker was started.
  std::vector<std::string> last_log_lines(int local_rank) const;

 private:
  struct Member {
    int local_rank = 0;
    pid_t pid = -1;
    UniqueFd pidfd;
    std::unique_ptr<OutputPump> out;
    std::unique_ptr<OutputPump> err;
    bool running = false;       // the leader has not ended
    bool group_killed = false;  // or nobody was left in it
    MonotonicTime drain_deadline = MonotonicTime::InfiniteFuture();
  };

  absl::Status StartOne(const std::string& program, const std::vector<std::string>& arguments,
                        const Worker& worker, int local_rank);
  void OnEnded(Member& member);
  void KillGroup(Member& member);
  // Asked whenever an orphan has been reaped, so that the number of a group that is gone does not
  // become another's unnoticed.
  void NoteEmptyGroups();
  // Once all workers are gone: ends what they left, then the epoch.
  void CheckGone();

  EventLoop& loop_;
  Console& console_;
  Custody& custody_;
  const Listener listener_;
  std::vector<std::unique_ptr<Member>> members_;
  bool stopping_ = false;
  // Set while what the workers left is being ended.
  MonotonicTime sweep_deadline_ = MonotonicTime::InfiniteFuture();
  bool gone_ = false;
};

}  // namespace convene::agent
