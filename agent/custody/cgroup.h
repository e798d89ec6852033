// Cgroups (v2) that hold what comes from the workers of one epoch: no process leaves one by setsid,
// a double fork or another environment. The agent holds a lock on each, for as long as it lives.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tools/base/unique_fd.h"

namespace convene::agent {

// The directory of this process's own cgroup; "" where there is no v2 hierarchy or it is not to be
// seen. Whether it is writable, Create finds out.
std::string OwnCgroup();

// Ends what agents that were killed together with their guardians left in `parent`: all cgroups of
// agents there whose lock (flock) is free.
void SweepCgroups(const std::string& parent);

class Cgroup {
 public:
  // "convene.<pid of the agent>.": what follows is the agent's.
  static std::string NamePrefix();

  // Makes `parent`/`name`, without any controller: resources stay accounted where they were.
  // nullptr when it may not, or the kernel has no way to kill one as a whole.
  static std::unique_ptr<Cgroup> Create(const std::string& parent, const std::string& name);
  // Removes it, if all in it have ended.
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  int fd() const { return directory_.get(); }  // for CLONE_INTO_CGROUP
  void Kill();
  // All in it (not below it) move to the one above, where no sweep finds them.
  void Release();

 private:
  Cgroup(UniqueFd parent, std::string name, UniqueFd directory)
      : parent_(std::move(parent)), name_(std::move(name)), directory_(std::move(directory)) {}

  UniqueFd parent_;
  const std::string name_;
  UniqueFd directory_;
};

// The same for the guardian: without malloc. `parent` and `cgroup` are open directories.

// SIGKILL to every process in `cgroup` and below it.
void KillCgroup(int cgroup);
// Removes it and the cgroups below it; false when a process in it has not ended.
bool RemoveCgroup(int parent, const char* name);

}  // namespace convene::agent
