// Everything that comes from this agent's workers, as one thing: nothing of it outlives its epoch,
// nor the agent, unless it is released.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/custody/cgroup.h"
#include "agent/custody/guardian.h"
#include "agent/custody/process_table.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// While it lives, this process is the reaper of its descendants: an orphan becomes its child,
// however far it moved away. So whatever is left of an epoch is found in the tree of processes
// below this one, and what is in the way of a kill is seen. Where cgroups (v2) may be written, each
// epoch has one, and one write kills all in it. guardian.h tells how everything ends when this
// process is killed.
//
// Strangers become children of this process too when it is the first one of a container, or was a
// shell with children before it became this program. Then only what has the token in its
// environment is taken for ours.
//
// Processes of ours that are no workers must be started by Spawn too: other children that end are
// reaped here.
//
// Lives on the thread of its loop, with SIGCHLD blocked in every thread (it blocks it for threads
// to come).
class Custody {
 public:
  // `on_orphan_ended`: something that was left behind has ended.
  Custody(EventLoop& loop, std::function<void()> on_orphan_ended);
  ~Custody();
  Custody(const Custody&) = delete;
  Custody& operator=(const Custody&) = delete;

  // For the environment of every worker, as CONVENE_AGENT_TOKEN. With that of the agent around this
  // one, when there is one: both agents then know what is theirs.
  const std::string& token() const { return token_; }

  // The epochs, one at a time.
  void BeginEpoch();
  int cgroup_fd() const { return cgroup_ == nullptr ? -1 : cgroup_->fd(); }  // -1 = none
  // Where a worker enters its number, for the guardian; nullptr when there are too many.
  std::atomic<pid_t>* SessionSlot(int local_rank);
  // Whether anything lives that comes from the workers: all descendants but the guardian, and what
  // has been released, or comes from there.
  bool AnyLeft();
  // Each of them, for a person: "sleep (pid 12)".
  std::vector<std::string> NamesOfLeft();
  // `signal`, and SIGCONT behind it, to those whose process group `skips` does not choose.
  void SignalLeft(int signal, const std::function<bool(pid_t group)>& skips);
  // SIGKILL to all of them. Returns how many there were.
  int KillAll();
  // They are nobody's from now on, nor is what they start: no later KillAll and no sweep ends it. A
  // process of theirs that begins a session of its own and loses its parent, both between two looks
  // at the table, is taken for one of the workers' of then.
  void Release();
  // REQUIRES: nothing is left, but for what hangs in the kernel.
  void EndEpoch();

  // The agent's end is not seen at the other end of this connection before all that comes from its
  // workers is dead: guardian.h.
  void HoldConnection(UniqueFd connection) { guardian_.Hold(std::move(connection)); }

  // No epoch follows. Early on the way out: the guardian then ends meanwhile.
  void Close() { guardian_.Dismiss(); }

  // After every Reap of one's own: orphans may be waiting behind it.
  void ReapOrphans();

 private:
  void OnChildSignal();
  // The table, where what is left is chosen; nullptr when there is nothing.
  ProcessTable* ChooseLeft();
  // Children of released processes are released, in whatever session; a session that is over is
  // forgotten, because its number may become another's.
  void FollowReleased(ProcessTable& table);

  EventLoop& loop_;
  const std::function<void()> on_orphan_ended_;
  const std::string own_token_;
  const std::string token_;
  const std::string cgroup_parent_;  // "" = no cgroups
  const std::string cgroup_prefix_;
  const bool has_strangers_;
  const UniqueFd child_signals_;
  Guardian guardian_;
  std::unique_ptr<Cgroup> cgroup_;
  int epochs_ = 0;
  bool has_released_ = false;
};

}  // namespace convene::agent
