// Watches the workers' progress pages, and reports a worker that hangs, with its stack.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/hang_detector.h"
#include "agent/core/machine.h"
#include "agent/core/rank_reports.h"
#include "agent/hang/progress_page.h"
#include "agent/hang/stack_dump.h"
#include "agent/options.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"
#include "tools/base/strong_int.h"

namespace convene::agent {

// Lives on the thread of its loop. Looks once a second (oftener where a limit is below 4 s), and
// only while workers run: 416 bytes are read of each page.
class HangWatch {
 public:
  struct Listener {
    // Once an epoch at most, with HangVerdict's why and the first 20 lines of where it stands: by a
    // debugger, or by the kernel alone.
    std::function<void(WorkerHung, bool by_debugger)> on_hang;
    std::function<void(const std::string&)> on_log;  // a line for the log
  };

  // `search_path`: PATH, for debuggers.
  HangWatch(EventLoop& loop, const HangLimits& limits, std::string search_path, Listener listener);

  // Makes a page for each worker of the coming epoch and gives their paths ("" where none could be
  // made: that worker is not watched). Removes the pages of the epoch before.
  std::vector<std::string> BeginEpoch(Epoch epoch, int first_global_rank, int world_size,
                                      int workers);
  // The workers run, by local rank.
  void Watch(const std::vector<pid_t>& pids);
  // `is_well`: with 0.
  void WorkerEnded(int local_rank, bool is_well);
  // Pauses the watch while the workers' output is not read: a worker that waits in a write does not
  // hang.
  void SetPaused(bool paused) { is_paused_ = paused; }
  // Reports this worker as hanging, whatever its page says, with its stack. False when it is no
  // running worker, or another worker is being examined.
  bool Blame(pid_t pid, const std::string& why);
  // The workers are being stopped, or are gone: none is judged any more.
  void EndEpoch();

  // The slowest worker's progress; none: no worker tells its progress.
  std::optional<rendezvous::WorkerProgress> Progress() const;
  // Each worker's, at most once a second; else, and where none tells its progress, empty.
  std::vector<rendezvous::RankProgress> TakeRanks();

 private:
  std::map<int, WorkerReading> Readings() const;
  void OnTime();
  void BeginDump(const HangVerdict& verdict, const std::map<int, WorkerReading>& readings);
  void OnDump(const StackDump::Result& result);
  void Log(const std::string& line) { listener_.on_log(line); }

  EventLoop& loop_;
  const absl::Duration look_interval_;
  const std::string search_path_;
  const Listener listener_;
  const std::string directory_;
  HangDetector detector_;
  RankReports reports_;
  Epoch epoch_;
  int first_global_rank_ = 0;
  std::map<int, std::unique_ptr<ProgressPage>> pages_;  // by local rank
  std::map<int, pid_t> pids_;                           // of workers that run
  LoopTimer timer_;
  std::optional<HangVerdict> verdict_;  // of the latest look, or another's
  bool is_blamed_by_another_ = false;   // then looks do not change it
  bool is_paused_ = false;
  bool has_told_of_tracing_ = false;
  int suspect_ = -1;         // whose dump is being made
  std::string suspect_why_;  // as it was when the dump began
  std::unique_ptr<StackDump> dump_;
};

}  // namespace convene::agent
