// Starts one worker process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/core/exit_classifier.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

struct SpawnRequest {
  std::string program;                   // a path: FindProgram's answer
  std::vector<std::string> arguments;    // argv[0] first
  std::vector<std::string> environment;  // "NAME=value"
  int stdin_fd = -1;                     // -1: /dev/null
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<int> cpus;      // that it and all its threads may run on; empty: those of the agent
  bool ignores_term = false;  // SIGTERM for all processes of a scheduler's step is not for it
  int cgroup_fd = -1;  // it starts in this cgroup (v2), where the kernel can do that; -1 = ours
  std::atomic<pid_t>* pid_slot =
      nullptr;  // gets its number before its execve, 0 after an error; nullptr = none
};

struct Child {
  pid_t pid = -1;
  UniqueFd pidfd;  // readable when the process has ended
};

// The child leads a session (so that no signal of a terminal reaches it) and a process group of its
// own, may leave core files as the user's limit says (tools/base/core_files.h), has every
// descriptor above 2 closed, no signal blocked, caught or ignored (but for ignores_term), and is
// killed when the calling thread ends (so call it from the main thread). Returns after its execve:
// an error of that call is this call's. NotFound, PermissionDenied, InvalidArgument (not a program:
// no "#!" line): the program is at fault; any other code: the machine lacks something.
absl::StatusOr<Child> Spawn(const SpawnRequest& request);

// Gives `pid` the place of a process that Spawn would start: slot, CPUs, cgroup. From now on it is
// one, for Reap. REQUIRES: a child of this process with one thread, in a session of its own, not
// reaped. Errors: what Spawn gives its child before the execve cannot be given to it.
absl::Status Adopt(const SpawnRequest& request, pid_t pid);

// Whether Spawn started it and Reap has not been called for it. Main thread.
bool IsSpawned(pid_t pid);

// The caller will not call Reap for it: Custody reaps it as an orphan. Main thread.
void Disown(pid_t pid);

// The end of an ended child; Peek leaves the child to be reaped. REQUIRES: its pidfd is readable.
ExitStatus Reap(pid_t pid);
ExitStatus Peek(pid_t pid);

}  // namespace convene::agent
