#include "agent/custody/process_table.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tools/base/directory_entries.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

constexpr size_t kLongestPath = 64;  // bytes, of /proc/<pid>/<name>

UniqueFd OpenOf(pid_t pid, const char* name) {
  char path[kLongestPath];
  std::snprintf(path, sizeof(path), "/proc/%d/%s", static_cast<int>(pid), name);
  return UniqueFd(open(path, O_RDONLY | O_CLOEXEC));
}

// False, with errno ENOENT or ESRCH, when there is no such process.
bool ReadEntry(pid_t pid, ProcessEntry& entry) {
  ProcessStat stat;
  if (!ReadStat(pid, stat)) return false;
  entry.pid = pid;
  entry.state = static_cast<char>(stat[3]);
  entry.parent = static_cast<pid_t>(stat[4]);
  entry.group = static_cast<pid_t>(stat[5]);
  entry.session = static_cast<pid_t>(stat[6]);
  entry.terminal = static_cast<int>(stat[7]);
  entry.start_time = stat[22];
  entry.chosen = false;
  return true;
}

}  // namespace

ProcessTable& ProcessTable::Read() {
  static constinit ProcessTable table;  // All zero: it costs memory only where it is filled.
  table.count_ = 0;
  const UniqueFd proc(open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  table.is_complete_ = proc.valid();
  ForEachEntry(proc.get(), [](const dirent64& found) {
    const pid_t pid = std::atoi(found.d_name);
    if (pid <= 0) return;
    if (table.count_ < kMost && ReadEntry(pid, table.entries_[table.count_])) {
      ++table.count_;
    } else if (table.count_ == kMost || (errno != ENOENT && errno != ESRCH)) {
      table.is_complete_ = false;
    }
  });
  std::sort(table.begin(), table.end(),
            [](const ProcessEntry& a, const ProcessEntry& b) { return a.pid < b.pid; });
  return table;
}

ProcessEntry* ProcessTable::Find(pid_t pid) {
  ProcessEntry* const found =
      std::lower_bound(begin(), end(), pid,
                       [](const ProcessEntry& entry, pid_t wanted) { return entry.pid < wanted; });
  return found != end() && found->pid == pid ? found : nullptr;
}

void ProcessTable::ChooseDescendants() {
  // A child nearly always has a higher number than its parent: the first round finds all, and a
  // second one finds nothing more.
  for (bool changed = true; changed;) {
    changed = false;
    for (ProcessEntry& entry : *this) {
      if (entry.chosen) continue;
      const ProcessEntry* const parent = Find(entry.parent);
      if (parent == nullptr || !parent->chosen) continue;
      entry.chosen = changed = true;
    }
  }
}

bool ProcessTable::KillChosen() {
  ChooseDescendants();
  bool any = false;
  for (const ProcessEntry& entry : *this) {
    if (!entry.chosen || entry.ended() || entry.pid == getpid()) continue;
    SignalProcess(entry, SIGKILL);
    any = true;
  }
  return any;
}

bool ReadStat(pid_t pid, ProcessStat& stat) {
  const UniqueFd file = OpenOf(pid, "stat");
  if (!file.valid()) return false;
  char text[1024];
  const ssize_t length = read(file.get(), text, sizeof(text) - 1);
  errno = ESRCH;  // From here on a failure means that it is gone.
  if (length <= 0) return false;
  text[length] = '\0';
  // "pid (name) state parent group session ...": the name may hold anything, ')' too.
  char* const name_end = std::strrchr(text, ')');
  if (name_end == nullptr || name_end[1] == '\0') return false;
  stat[3] = static_cast<unsigned char>(name_end[2]);
  char* next = name_end + 3;
  for (size_t field = 4; field < stat.size(); ++field) stat[field] = std::strtoull(next, &next, 10);
  return true;
}

bool EnvironmentHolds(pid_t pid, const char* text) {
  const UniqueFd file = OpenOf(pid, "environ");
  if (!file.valid()) return false;
  const size_t wanted = std::strlen(text);
  char buffer[8192];
  size_t kept = 0;  // the end of the part before: the text may lie across
  for (;;) {
    const ssize_t count = read(file.get(), buffer + kept, sizeof(buffer) - kept);
    if (count <= 0) return false;
    const size_t length = kept + static_cast<size_t>(count);
    if (memmem(buffer, length, text, wanted) != nullptr) return true;
    kept = std::min(length, wanted - 1);
    std::memmove(buffer, buffer + length - kept, kept);
  }
}

void SignalProcess(const ProcessEntry& entry, int signal) {
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, entry.pid, 0)));
  if (!process.valid()) return;
  // Open first, then look: from here on the descriptor names one process, whatever dies.
  ProcessEntry now;
  if (!ReadEntry(entry.pid, now) || now.start_time != entry.start_time) return;
  syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
}

}  // namespace convene::agent
