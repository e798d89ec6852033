// Spare processes that have done what the workers' program does first, for the next start.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/custody/spawn.h"
#include "agent/warm/warm_plan.h"
#include "agent/warm/warm_record.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// README.md tells the whole way. The pool has one process, the parent of spares, and forks of it,
// the spares. These are children of this process and die with it, each in a session of its own,
// with the agent's token in its environment: as a worker that Spawn has started. Until they are
// used they are no leftovers of an epoch (IsCompanion). Without parent and spares the
// workers start cold.
//
// Lives on the thread of its loop, which is the main one.
class WarmPool {
 public:
  struct Options {
    std::vector<int> slots;   // SpareSlots: a spare for each entry
    bool own_device = false;  // each worker has a list of devices for itself
    std::string directory;    // made for warm.py, the record and the socket; removed at the end
    // The first start waits no more (HoldsStart).
    std::function<void()> on_start = [] {};
  };

  // `on_say`: a line for the person. Errors are the system's own.
  static absl::StatusOr<std::unique_ptr<WarmPool>> Start(
      EventLoop& loop, Options options, std::function<void(const std::string&)> on_say);
  // Kills parent and spares.
  ~WarmPool();
  WarmPool(const WarmPool&) = delete;
  WarmPool& operator=(const WarmPool&) = delete;

  // Before the first start, which then waits for its spares, at most `limit`, where a run before
  // this one has kept in `cache` (Convene's folder) what it imported. Keeps it for later runs.
  // `example`: as a worker's, but for the variables of a rank.
  void BeginFromRecord(const SpawnRequest& example, const std::string& cache, absl::Duration limit);
  // Options::on_start follows.
  bool HoldsStart() const { return holds_start_; }

  // As Spawn, by the spare of this local rank where it is ready. A worker with a terminal starts
  // cold.
  absl::StatusOr<Child> SpawnWorker(const SpawnRequest& request, int local_rank);
  // The number of workers that spares became since the last call.
  int TakeUsed() { return std::exchange(used_, 0); }
  // Whether it is the session of the parent or of a spare that is not used.
  bool IsCompanion(pid_t session) const;

 private:
  struct Spare {
    int slot = 0;  // the local rank that it is for
    UniqueFd socket;
    pid_t pid = 0;  // 0: not born
    UniqueFd pidfd;
    bool is_ready = false;
    bool is_used = false;  // it has become a worker and may yet tell why it begins cold
  };

  WarmPool(EventLoop& loop, Options options, std::function<void(const std::string&)> on_say);

  absl::Status Listen();
  void OnGuest();
  void OnFirstWord(int fd);
  // Does what the plan says, and lets the first start go when it can.
  void Think();
  void Act();
  void CheckStart();
  void SetExample(const SpawnRequest& request);
  // Puts it where the parent reads it. FailedPrecondition: it is of other variables.
  absl::Status TakeRecord(const WarmRecord& record) const;
  // There will be no more spares, and those of a later run would fare no better.
  void GiveUp(absl::string_view why);
  // Later runs are not to wait for spares, whatever this one yet learns.
  void DropRecord();
  // For later runs: what a worker has recorded, and what no parent can import.
  void Keep();
  absl::Status StartParent();
  absl::Status Fork();
  // The first of the slots without a spare.
  int FreeSlot() const;
  void KillParent();
  void OnParentWord();
  void OnParentEnded();
  void OnSpareWord(Spare& spare);
  // False: it is not what it seems, or cannot be watched.
  bool TakeBirth(Spare& spare, absl::string_view pid);
  size_t ReadySpares() const;
  // By itself, or used up.
  void Died(Spare& spare);
  // Ends it, if it is not used.
  void Forget(Spare& spare);
  // Ends the spares that are not used.
  void KillSpares();
  bool HandOver(Spare& spare, const SpawnRequest& request);
  void Changed(absl::string_view why);
  // A spare has another value of this variable than the worker that it is to become.
  void OnUnlike(absl::string_view variable);

  EventLoop& loop_;
  const Options options_;
  const std::function<void(const std::string&)> on_say_;
  const std::set<std::string> places_;
  const std::string path_;  // of the socket
  WarmPlan plan_;
  LoopTimer timer_;
  UniqueFd listener_;
  // The parent's stdout and stderr. A pipe as a worker's, for Python looks once, at its start,
  // whether a stream can seek. Nobody reads it: warm.py keeps elsewhere what imports print.
  // Words that come when it is full are lost.
  UniqueFd output_;
  UniqueFd unread_;
  std::vector<UniqueFd> guests_;                   // connected, have said nothing
  SpawnRequest example_;                           // of local rank 0, last
  int starts_ = 0;                                 // of local rank 0
  std::map<int, std::vector<std::string>> slots_;  // local rank -> its SlotVariables, last
  pid_t parent_ = 0;
  std::vector<std::string> parent_environment_;  // as the agent gave it
  UniqueFd parent_pidfd_;
  UniqueFd parent_socket_;
  std::vector<std::unique_ptr<Spare>> spares_;
  bool has_told_ready_ = false;  // of all spares, since the last import
  bool holds_start_ = false;
  std::unique_ptr<WarmRecordFile> record_file_;  // where records are kept
  bool keeps_ = true;                            // records of this run, in that file
  int used_ = 0;
};

}  // namespace convene::agent
