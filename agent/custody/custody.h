// Custody of all processes that come from this agent's workers: none of them outlives its epoch,
// nor the agent.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/custody/cgroup.h"
#include "agent/custody/guardian.h"
#include "agent/custody/process_table.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// While it lives, this process is the reaper of its descendants: an orphan becomes its child,
// however far it moved away. So all leftovers of an epoch are found in the tree of processes below
// this one. Where cgroups (v2) may be written, each epoch has one, and one write kills all
// processes in it. guardian.h tells how everything ends when this process is killed.
//
// Strangers become children of this process too when it is the first one of a container, or was a
// shell with children before it became this program. Then only processes with the token in their
// environment count as ours, and those in the session of one of the epoch's workers.
//
// Our own processes that are no workers must be started by Spawn too, since other children that end
// are reaped here.
//
// Lives on the thread of its loop, with SIGCHLD blocked in every thread (it blocks it for threads
// to come).
class Custody {
 public:
  // `on_orphan_ended`: a process that was left behind has ended.
  Custody(EventLoop& loop, std::function<void()> on_orphan_ended);
  ~Custody();
  Custody(const Custody&) = delete;
  Custody& operator=(const Custody&) = delete;

  // For the environment of every worker, as CONVENE_AGENT_TOKEN. It contains the token of an agent
  // around this one, so that both agents know their processes.
  const std::string& token() const { return token_; }

  // Tells whether Spawn started the leader of a session for the agent itself, beside the workers:
  // the processes of that session and their descendants are no leftovers. Without it no process is
  // excepted.
  void SetCompanions(std::function<bool(pid_t session)> is_companion) {
    is_companion_ = std::move(is_companion);
  }

  // The epochs, one at a time.
  void BeginEpoch();
  int cgroup_fd() const { return cgroup_ == nullptr ? -1 : cgroup_->fd(); }  // -1 = none
  // Where a worker enters its number, for the guardian; nullptr when there are too many.
  std::atomic<pid_t>* SessionSlot(int local_rank);
  // `worker` leads a session. Until the epoch ends, all of that session counts as left behind.
  void AddWorker(pid_t worker) { workers_.insert(worker); }
  // Whether a process that comes from the workers lives: any descendant but the guardian and
  // released processes.
  bool AnyLeft() { return !Left().empty(); }
  // Each of them, for a person: "sleep (pid 12)". The oldest is first: a process stands before the
  // processes that it started.
  std::vector<std::string> NamesOfLeft();
  // The health check has ended, and started all that is left now: NamesOfLeft says so.
  void NoteHealthCheck();
  // Sends `signal`, and SIGCONT behind it, to leftovers whose process group `skips` does not
  // choose.
  void SignalLeft(int signal, const std::function<bool(pid_t group)>& skips);
  // Sends `signal`, and nothing behind it, to all of them.
  void PassOn(int signal);
  // Sends SIGKILL to all of them. Returns their number.
  size_t KillAll();
  // Gives them up: no later KillAll and no sweep ends them.
  void Release();
  // REQUIRES: nothing is left but processes that hang in the kernel.
  void EndEpoch();

  // The connection's other end does not see the agent's end before all processes of its workers are
  // dead: guardian.h.
  void HoldConnection(UniqueFd connection) { guardian_.Hold(std::move(connection)); }

  // No epoch follows. Call it early on the way out, so that the guardian ends meanwhile.
  void Close() { guardian_.Dismiss(); }

  // Reaps all ended children but Spawn's: their owners want to know how they ended. Call it after
  // every Reap of one's own: orphans may be waiting behind it.
  static void ReapOrphans();

 private:
  void OnChildSignal();
  std::vector<ProcessEntry> Left();

  EventLoop& loop_;
  const std::function<void()> on_orphan_ended_;
  std::function<bool(pid_t)> is_companion_ = [](pid_t) { return false; };
  const std::string own_token_;
  const std::string token_;
  const std::string cgroup_parent_;  // "" = no cgroups
  const std::string cgroup_prefix_;
  const bool has_strangers_;
  const UniqueFd child_signals_;
  Guardian guardian_;
  std::unique_ptr<Cgroup> cgroup_;
  int epochs_ = 0;
  std::set<pid_t> workers_;  // of the present epoch
  std::set<pid_t> of_check_;
  bool has_released_ = false;
};

// For processes that workers left when their agent and its guardian were both killed. Sends SIGKILL
// to the processes that have `token` in their environment and to their descendants, again and again
// until none is left or `patience` is over. Returns the processes that it found, for a person.
// Misses a process that has cleared its environment and left its parent. REQUIRES: no agent that
// gave out `token` lives.
std::vector<std::string> KillMarked(const std::string& token, absl::Duration patience);

}  // namespace convene::agent
