// The worker processes of one epoch on this node.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/leftovers.h"
#include "agent/core/machine.h"
#include "agent/custody/custody.h"
#include "agent/custody/spawn.h"
#include "agent/options.h"
#include "agent/output/console.h"
#include "agent/output/output_pump.h"
#include "tools/base/clock.h"
#include "tools/base/event_loop.h"

namespace convene::agent {

// A worker's life:
//
//   running ──leader ended──► draining ──output at its end, nothing left──► gone
//
// When a leader fails by itself, the rest of its process group gets TERM; when it ends with 0, the
// rest goes on with its work. When it ends after Stop, the rest of its group has until Kill to
// finish (a shell that died of the signal while the program it started still saves), as long as it
// holds the output. When the last leader has ended, LeftoverPlan (agent/core/leftovers.h) decides
// about all processes that the workers left anywhere. on_gone waits until these are dead, so that
// their resources (a GPU's memory, a port) are free for the next epoch.
//
// Lives on the thread of its loop, which is the main one (spawn.h says why).
class WorkerGroup {
 public:
  struct Worker {
    SpawnRequest spawn;  // with outputs, a cgroup and a slot of ours
    StreamOutput out;
    StreamOutput err;
  };
  struct Listener {
    // A leader ended; what it wrote has been read: the last lines of stderr, of stdout when that is
    // empty.
    std::function<void(WorkerExited)> on_exit;
    std::function<void()> on_gone;                   // the last worker is gone; once
    std::function<void(const std::string&)> on_say;  // a line for the person
    // Starts a worker, as Spawn.
    std::function<absl::StatusOr<Child>(const SpawnRequest&, int local_rank)> spawn =
        [](const SpawnRequest& request, int) { return Spawn(request); };
  };

  // The listener's functions must not destroy the group.
  WorkerGroup(EventLoop& loop, Console& console, Custody& custody, const LeftoverOptions& leftovers,
              Listener listener);
  // Kills the remaining processes and reaps them.
  ~WorkerGroup();
  WorkerGroup(const WorkerGroup&) = delete;
  WorkerGroup& operator=(const WorkerGroup&) = delete;

  // Spawns worker i of `workers` as local rank i. After an error (as Spawn's) the earlier workers
  // run: Stop or Kill them, then on_gone follows (also without any worker). Call it once.
  absl::Status Start(const std::vector<Worker>& workers);

  // Sends `signal` to every process of the groups of the workers that `chosen` names (by local
  // rank), but not to a group that has had it before.
  void Stop(int signal, const std::function<bool(int)>& chosen);
  // Sends SIGKILL to all remaining processes.
  void Kill();
  // Sends `signal` to every process of every group; changes nothing else. Workers that rest get no
  // SIGCONT.
  void PassOn(int signal);
  // Stops every process that comes from the workers (SIGSTOP), until Wake. A signal that Stop sends
  // meanwhile waits for Wake; Kill ends processes that rest.
  void Rest();
  void Wake();
  // Custody's on_orphan_ended.
  void OnOrphanEnded();

  // Lets the workers wait while the console's readers are slow, or go on.
  void SetPaused(bool paused);
  // The log disk may have room again for the output of workers that wait for it.
  void OnDiskRelief();

  MonotonicTime next_deadline() const;
  void OnTime(MonotonicTime now);

  bool gone() const { return gone_; }
  std::vector<pid_t> pids() const;  // by local rank
  // The last lines so far, as on_exit's. REQUIRES: the worker was started.
  std::vector<std::string> last_log_lines(int local_rank) const;

 private:
  struct Member {
    int local_rank = 0;
    pid_t pid = -1;
    UniqueFd pidfd;
    std::array<std::unique_ptr<OutputPump>, 2> pumps;  // of stdout and stderr
    bool running = false;                              // the leader has not ended
    bool ended_in_stop = false;
    int told = 0;               // the last signal that its group got; 0: none
    bool group_killed = false;  // or nobody was left in it
    MonotonicTime drain_deadline = MonotonicTime::InfiniteFuture();
  };

  absl::Status StartOne(const Worker& worker, int local_rank);
  void OnEnded(Member& member);
  void KillGroup(Member& member);
  void TellGroup(Member& member, int signal);
  // To be called whenever an orphan has been reaped: the number of a group that is gone may become
  // a stranger's, which must get no signal of ours.
  void NoteEmptyGroups();
  // Once all workers have ended: follows the plan for their leftovers, then ends the epoch.
  void CheckGone();
  void Ask();
  void EndEpoch();
  // Logs "WHAT: sleep (pid 12), ...".
  void SayLeft(const std::string& what);

  EventLoop& loop_;
  Console& console_;
  Custody& custody_;
  const LeftoverOptions leftovers_;
  const Listener listener_;
  std::optional<int64_t> memory_kills_before_;  // MemoryKills as the epoch began
  std::vector<std::unique_ptr<Member>> members_;
  bool stopping_ = false;
  bool resting_ = false;
  bool all_well_ = true;  // every leader that has ended did so with 0, before Stop
  LeftoverPlan plan_;
  bool gone_ = false;
};

}  // namespace convene::agent
