// The processes of this machine, as /proc shows them. Nothing here allocates or takes a lock: the
// guardian, a fork of a process with threads, can do neither.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>

namespace convene::agent {

struct ProcessEntry {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  int terminal = 0;         // the device number that controls it, as proc(5) writes it; 0: none
  char state = 0;           // as in `ps`
  bool chosen = false;      // the caller's
  uint64_t start_time = 0;  // with the pid: this process and no later one of its number

  // Dead, but its parent has not reaped it.
  bool ended() const { return state == 'Z' || state == 'X'; }
  // Numbers do not tell the age: the kernel begins again with small ones. Of two processes of the
  // same clock tick, the smaller number counts as the older one.
  bool IsOlderThan(const ProcessEntry& other) const {
    return start_time != other.start_time ? start_time < other.start_time : pid < other.pid;
  }
};

// One snapshot; processes that are forked meanwhile may be missing. There is one table, of fixed
// size: of a machine with more processes it shows this many.
class ProcessTable {
 public:
  static constexpr int kMost = 1 << 16;

  // Reads anew. The entries are sorted by pid.
  static ProcessTable& Read();
  // Whether the last Read saw every process: there was room, and a descriptor to spare.
  bool is_complete() const { return is_complete_; }

  ProcessEntry* begin() { return entries_; }
  ProcessEntry* end() { return entries_ + count_; }
  // nullptr when it is not there.
  ProcessEntry* Find(pid_t pid);
  // Chooses all descendants of chosen processes.
  void ChooseDescendants();
  // Sends SIGKILL to the chosen processes that have not ended and their descendants, but not to
  // this process. Returns whether there were any.
  bool KillChosen();

 private:
  ProcessEntry entries_[kMost];
  int count_ = 0;
  bool is_complete_ = false;
};

// The fields of /proc/<pid>/stat by their numbers in proc(5), from the third (a letter) on; a
// negative number wraps.
using ProcessStat = std::array<uint64_t, 50>;

// False, with errno ENOENT or ESRCH, when there is no such process.
bool ReadStat(pid_t pid, ProcessStat& stat);

// Whether `text` stands in the environment that the process was started with. False when this
// process may not read it. May hang, killably, on a process that hangs in the kernel.
bool EnvironmentHolds(pid_t pid, const char* text);

// Sends `signal` to that process, if it still is there.
void SignalProcess(const ProcessEntry& entry, int signal);

}  // namespace convene::agent
