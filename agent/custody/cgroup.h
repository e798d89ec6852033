// Cgroups (v2) that hold all processes of one epoch's workers: no process leaves one by setsid, a
// double fork or another environment. The agent holds a lock on each, for as long as it lives.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tools/base/unique_fd.h"

namespace convene::agent {

// The directory of this process's own cgroup; "" where there is no v2 hierarchy or it cannot be
// seen, and in a step of Slurm, whose processes are Slurm's to kill. Create finds out whether it is
// writable.
std::string OwnCgroup();

// Ends the processes that agents left in `parent` when they were killed together with their
// guardians: all cgroups of agents there whose lock (flock) is free.
void SweepCgroups(const std::string& parent);

class Cgroup {
 public:
  // "convene.<pid of the agent>."; the agent chooses the rest.
  static std::string NamePrefix();

  // Makes `parent`/`name`, without any controller: resources stay accounted where they were.
  // nullptr when it is not permitted, or the kernel cannot kill a cgroup as a whole.
  static std::unique_ptr<Cgroup> Create(const std::string& parent, const std::string& name);
  // Removes the cgroup, if all processes in it have ended.
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  int fd() const { return directory_.get(); }  // for CLONE_INTO_CGROUP and KillCgroup
  // Moves all processes in it (not below it) to the cgroup above, where no sweep finds them.
  void Release();

 private:
  Cgroup(UniqueFd parent, std::string name, UniqueFd directory)
      : parent_(std::move(parent)), name_(std::move(name)), directory_(std::move(directory)) {}

  UniqueFd parent_;
  const std::string name_;
  UniqueFd directory_;
};

// Functions for the guardian, without malloc. `parent` and `cgroup` are open directories.

// SIGKILL to every process in `cgroup` and below it.
void KillCgroup(int cgroup);
// Removes it and the cgroups below it; false when a process in it has not ended.
bool RemoveCgroup(int parent, const char* name);

}  // namespace convene::agent
