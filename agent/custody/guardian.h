// The process that outlives a killed agent for the moment it takes to end all its processes.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>

#include "absl/strings/string_view.h"
#include "agent/custody/process_table.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Memory that the agent and its guardian share. A change in it wakes neither of them.
struct GuardianPage {
  static constexpr int kMostWorkers = 1000;
  static constexpr int kMostReleased = 1000;

  char token[33] = {};            // in the environment of all that comes from a worker
  char cgroup_parent[2048] = {};  // "" = no cgroups
  char cgroup_prefix[64] = {};    // of the names of this agent's in there
  // The workers that run, by local rank: each leads the session of its number. 0 = none. A worker
  // enters itself before its execve (a vfork shares our memory); it is taken out before it is
  // reaped, when its number can become a stranger's.
  std::array<std::atomic<pid_t>, kMostWorkers> sessions = {};
  // The sessions whose processes are left alone for ever. 0 = none; a session that finds no room
  // here is not left alone.
  std::array<std::atomic<pid_t>, kMostReleased> released = {};

  bool IsReleased(pid_t session) const;
  void Release(pid_t session);
  // Children of released processes are released, in whatever session.
  void FollowReleased(ProcessTable& table);
  // A session that is over is forgotten, because its number may become another's. The agent alone
  // does it: a look at /proc may miss a process that is being born, and the guardian, which kills
  // for a few seconds at the most, would kill what was left alone.
  void ForgetEnded(ProcessTable& table);
};

// A fork of the agent, "convene-guard" in `ps`, that has closed all descriptors, is in a session of
// its own and heeds no signal. It waits for the agent's end. Then it kills, again and again until
// none is left, all processes in the agent's cgroups, in the sessions of its workers, with its
// token in their environment, and their descendants. It gives up after 5 s (a process that does not
// die of SIGKILL hangs in the kernel), removes the cgroups and ends.
//
// It also holds the agent's connection to the rendezvous. The daemon takes the end of a connection
// for the end of its node, and lets the others begin a new epoch at once: so it must not see it
// while a worker of the old one still runs.
//
// When it dies first, the agent starts another. It is no ordinary child: it raises no SIGCHLD, and
// waitpid without __WALL does not see it.
//
// Lives on the thread of its loop.
class Guardian {
 public:
  // Starts the process. That is cheap before the agent has grown and has threads, so it comes
  // early. When no process can be started, the agent goes on without a guardian, and the log says
  // so.
  Guardian(EventLoop& loop, absl::string_view token, absl::string_view cgroup_parent,
           absl::string_view cgroup_prefix);
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // A descriptor of the connection, beside the agent's own, which must be shut down (shutdown(2))
  // and not only closed when it is to end before this process does. Replaces the one before.
  void Hold(UniqueFd connection);

  // Ends the guardian without waiting for its end: there is nothing left to guard.
  void Dismiss();

  GuardianPage& page() { return *page_; }
  pid_t pid() const { return pid_; }  // -1 = none

 private:
  void Start();
  void OnEnded();
  void SendConnection();

  EventLoop& loop_;
  GuardianPage* const page_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd channel_;     // to the guardian
  UniqueFd connection_;  // for another guardian
  int restarts_ = 0;
};

}  // namespace convene::agent
