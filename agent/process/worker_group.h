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
// moved to a session of its own is left alone; when it holds the output, the output ends after 200
// ms.
//
// Lives on the thread of its loop, which is the main one (spawn.h says why).
class WorkerGroup {
 public:
  struct Worker {
    std::vector<std::string> environment;
    std::string prefix;           // before its lines on the console
    std::string stdout_log_file;  // "" = none
    std::string stderr_log_file;
    bool in_place = false;  // its redrawn lines are shown
  };
  struct Exit {
    int local_rank = 0;
    pid_t pid = 0;
    ExitStatus status;
    std::vector<std::string> last_log_lines;  // of both streams
  };
  struct Listener {
    std::function<void(Exit)> on_exit;  // a leader ended; what it wrote has been read
    std::function<void()> on_gone;      // the last worker is gone; once
  };

  // The listener's functions must not destroy the group.
  WorkerGroup(EventLoop& loop, Console& console, Listener listener);
  // Kills what is left of every group and reaps it.
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

  // The console's readers are slow: let the workers wait, or go on.
  void SetPaused(bool paused);

  MonotonicTime next_deadline() const;
  void OnTime(MonotonicTime now);

  bool gone() const { return gone_; }
  std::vector<pid_t> pids() const;

 private:
  struct Member {
    int local_rank = 0;
    pid_t pid = -1;
    UniqueFd pidfd;
    LastLines last_lines;
    std::unique_ptr<OutputPump> out;
    std::unique_ptr<OutputPump> err;
    bool running = false;  // the leader has not ended
    bool group_killed = false;
    MonotonicTime drain_deadline = MonotonicTime::InfiniteFuture();
  };

  absl::Status StartOne(const std::string& program, const std::vector<std::string>& arguments,
                        const Worker& worker, int local_rank);
  void OnEnded(Member& member);
  void KillGroup(Member& member);
  void CheckGone();

  EventLoop& loop_;
  Console& console_;
  const Listener listener_;
  std::vector<std::unique_ptr<Member>> members_;
  bool stopping_ = false;
  bool gone_ = false;
};

}  // namespace convene::agent
