#include "agent/custody/cgroup.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/directory_entries.h"
#include "tools/base/files.h"

namespace convene::agent {
namespace {

constexpr char kPrefix[] = "convene.";
// The depth to which cgroups that workers nest are cleaned up.
constexpr int kDeepest = 16;
// How often Release looks for children that were forked meanwhile.
constexpr int kReleaseRounds = 100;

UniqueFd OpenDirectory(int at, const char* name) {
  return UniqueFd(openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

bool IsBelow(const dirent64& entry) {
  return entry.d_type == DT_DIR && std::strcmp(entry.d_name, ".") != 0 &&
         std::strcmp(entry.d_name, "..") != 0;
}

bool RemoveTree(int parent, const char* name, int depth) {
  if (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) return true;
  if (depth > kDeepest) return false;
  const UniqueFd cgroup = OpenDirectory(parent, name);
  ForEachEntry(cgroup.get(), [&](const dirent64& entry) {
    if (IsBelow(entry)) RemoveTree(cgroup.get(), entry.d_name, depth + 1);
  });
  return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

}  // namespace

void KillCgroup(int cgroup) {
  const UniqueFd file(openat(cgroup, "cgroup.kill", O_WRONLY | O_CLOEXEC));
  if (file.valid()) (void)!write(file.get(), "1", 1);
}

bool RemoveCgroup(int parent, const char* name) { return RemoveTree(parent, name, 0); }

std::string OwnCgroup() {
  const auto memberships = ReadFile("/proc/self/cgroup");
  if (!memberships.ok()) return "";
  for (const absl::string_view line : absl::StrSplit(*memberships, '\n')) {
    if (!absl::StartsWith(line, "0::/")) continue;
    // Slurm kills the processes in a task's own cgroup and overlooks any below it.
    if (absl::StrContains(line, "slurmstepd.scope/")) return "";
    // The second root is for hosts that still have v1 hierarchies.
    for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      struct statfs info;
      if (statfs(root, &info) != 0 || info.f_type != CGROUP2_SUPER_MAGIC) continue;
      return absl::StrCat(root, line.substr(3) == "/" ? "" : line.substr(3));
    }
  }
  return "";
}

std::string Cgroup::NamePrefix() { return absl::StrCat(kPrefix, getpid(), "."); }

void SweepCgroups(const std::string& parent) {
  const UniqueFd directory = OpenDirectory(AT_FDCWD, parent.c_str());
  ForEachEntry(directory.get(), [&](const dirent64& entry) {
    if (!IsBelow(entry) || !absl::StartsWith(entry.d_name, kPrefix)) return;
    const UniqueFd found = OpenDirectory(directory.get(), entry.d_name);
    if (!found.valid() || flock(found.get(), LOCK_EX | LOCK_NB) != 0) return;
    KillCgroup(found.get());
    RemoveCgroup(directory.get(),
                 entry.d_name);  // The next sweep removes a cgroup whose processes still die now.
  });
}

std::unique_ptr<Cgroup> Cgroup::Create(const std::string& parent, const std::string& name) {
  UniqueFd above = OpenDirectory(AT_FDCWD, parent.c_str());
  // Moving a process from one cgroup to the other needs the right to write in both.
  if (!above.valid() || faccessat(above.get(), "cgroup.procs", W_OK, AT_EACCESS) != 0 ||
      mkdirat(above.get(), name.c_str(), 0755) != 0) {
    return nullptr;
  }
  UniqueFd directory = OpenDirectory(above.get(), name.c_str());
  // Linux 5.14 and later.
  if (!directory.valid() || faccessat(directory.get(), "cgroup.kill", W_OK, AT_EACCESS) != 0) {
    RemoveCgroup(above.get(), name.c_str());
    return nullptr;
  }
  // The lock fails when another agent's sweep is removing the new cgroup.
  if (flock(directory.get(), LOCK_EX | LOCK_NB) != 0) return nullptr;
  return std::unique_ptr<Cgroup>(new Cgroup(std::move(above), name, std::move(directory)));
}

Cgroup::~Cgroup() { RemoveCgroup(parent_.get(), name_.c_str()); }

void Cgroup::Release() {
  const UniqueFd above(openat(parent_.get(), "cgroup.procs", O_WRONLY | O_CLOEXEC));
  if (!above.valid()) return;
  // A process that forks before it is moved leaves its child here: until nobody is found.
  for (int round = 0; round < kReleaseRounds; ++round) {
    const auto processes =
        ReadFile(absl::StrCat("/proc/self/fd/", directory_.get(), "/cgroup.procs"));
    if (!processes.ok() || processes->empty()) return;
    for (const absl::string_view pid : absl::StrSplit(*processes, '\n', absl::SkipEmpty())) {
      (void)!write(above.get(), pid.data(), pid.size());
    }
  }
}

}  // namespace convene::agent
