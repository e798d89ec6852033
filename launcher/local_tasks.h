// Several launchers of one job on one node (`srun --ntasks-per-node=8 convene run`, mpirun with
// several slots): the one of local rank 0 is the node's agent. The others wait for its end and end
// with its exit code, so that the scheduler sees one outcome.
//
// They meet at a Unix socket whose name (user, LocalTask::group and job) is in no file system.
// However the leader dies, the kernel forgets the name and closes the connections of the others.
// Nothing is left to clean up. Tasks in network namespaces of their own do not find each other.
//
// At a second socket, named after the group alone, a task of another job sees that task 0 has come
// and does not lead it, and tells the leader not to wait for it.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/unique_fd.h"

namespace convene::launcher {

// Lives on the main thread.
class LocalTaskLeader {
 public:
  // From now on the others find this process. Until the process blocks them, each of `signals` that
  // would end this process tells the others the code first (128 + n); ignored ones stay ignored.
  // AlreadyExists where another process leads them.
  static absl::StatusOr<std::unique_ptr<LocalTaskLeader>> Lead(const LocalTask& task,
                                                               const std::vector<int>& signals);
  ~LocalTaskLeader();
  LocalTaskLeader(const LocalTaskLeader&) = delete;
  LocalTaskLeader& operator=(const LocalTaskLeader&) = delete;

  // Waits until the others have come, for `patience` at most, and lets this process run on the CPUs
  // of all of them: the scheduler may have bound each task to its own. Call it before a thread
  // starts, since threads and workers inherit the CPUs. Returns how many of the others are jobs of
  // their own.
  int Gather(absl::Duration patience);
  // Tells the others this process's exit code. Call it once, last.
  void Dismiss(int exit_code);

 private:
  LocalTaskLeader(const LocalTask& task, UniqueFd listener, UniqueFd group_listener);

  void DismissAtSignals(const std::vector<int>& signals);
  // In a handler of signal `number`.
  static void OnSignal(int number);

  // How many of the others are still to come.
  int Missing() const {
    return others_ - static_cast<int>(peers_.size() + beside_.size() + refused_.size());
  }
  // Takes the next one that has come within `patience`. Returns false where there is none.
  bool Accept(absl::Duration patience);
  void AcceptPeer();
  // Takes a task that says that it is another job.
  void AcceptBeside();
  // Sends a task away whose command is another than this one's: nobody would run it.
  void Refuse(const UniqueFd& peer, int rank);

  const pid_t pid_;
  const int others_;
  const uint64_t command_;  // CommandMark's
  UniqueFd listener_;
  UniqueFd group_listener_;
  std::set<int> beside_;         // the local ranks of tasks that are another job
  std::set<int> refused_;        // those whose command is another
  std::vector<UniqueFd> peers_;  // has room for all, so that a signal's handler may read it
  std::atomic<size_t> peer_count_ = 0;
  std::vector<cpu_set_t> cpus_;  // of each peer
};

// For the tasks of the other local ranks. Waits until the leader ends, and returns its exit code.
// From the first contact on the process ignores `signals`: the scheduler sends them to every task,
// and the leader acts on them. NotFound where task 0 leads another job, and not this task's
// (LocalTask::job); InvalidArgument where it leads this job with another command; DeadlineExceeded
// where no leader comes within `patience`, Unavailable where it died before it could tell its exit
// code, PermissionDenied where another user's process has taken its place.
absl::StatusOr<int> AwaitLocalLeader(const LocalTask& task, const std::vector<int>& signals,
                                     absl::Duration patience);

}  // namespace convene::launcher
