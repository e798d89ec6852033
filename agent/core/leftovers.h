// PURE. How the processes that workers leave behind are ended, from the end of the last worker on:
//
//   all workers ended with 0,      kFinishing ──grace over, or the workers are told to stop──┐
//   nobody told them to stop ───►   they may finish their work                              │
//   a worker failed, or was told to stop ───────────────────────────────────► kAsked ◄──────┘
//                                                                    TERM │ 1 s
//                                                                         ▼
//                                                                      kKilled
//                                                                    KILL │ 2 s: they hang in the
//                                                                         ▼      kernel
//                                                                       gone  (from each state, as
//                                                                       soon as nothing is left)
//
// The cost: after a failure the next epoch waits for processes that ignore TERM, for 1 s at most.
// Python's resource_tracker ignores TERM too, but it ends by itself, some 30 ms after its worker;
// killed before, it would leave shared memory in /dev/shm. After a success the end of the command
// waits for an upload in the background, for the grace at most. A job without leftovers does not
// wait.
#pragma once

#include "absl/time/time.h"
#include "agent/options.h"
#include "tools/base/clock.h"

namespace convene::agent {

struct LeftoverFacts {
  bool any_left = false;     // a process that comes from a worker lives
  bool output_open = false;  // one of them holds a worker's output
  bool all_well = false;     // all workers ended with 0, and nobody has told them to stop
};

enum class LeftoverDeed {
  kWait,
  kAnnounce,  // say what is waited for, then wait
  kAsk,       // TERM to those that have not got it yet, then wait
  kKill,      // say what is killed; KILL to all, then wait
  kKillMore,  // KILL to what they started before they died, then wait
  kGiveUp,    // nothing more can be done about them
  kRelease,   // they are left alone, alive
  kDone,      // nothing is left
};

// Not thread-safe. For one epoch's workers.
class LeftoverPlan {
 public:
  // The time from TERM to KILL.
  static constexpr absl::Duration kAskedTime = absl::Seconds(1);
  // The time that leftovers get to die of SIGKILL: a process that held much memory takes a while to
  // give it back. A process that is not dead then hangs in the kernel, and the agent does not wait
  // for it.
  static constexpr absl::Duration kKillTime = absl::Seconds(2);
  // A wait that ends sooner is not worth a line in the log.
  static constexpr absl::Duration kAnnounceAfter = absl::Seconds(1);

  explicit LeftoverPlan(const LeftoverOptions& options) : options_(options) {}

  // The next deed. REQUIRES: every worker has ended. Ask again when a process has ended, and at
  // `deadline`.
  LeftoverDeed Next(const LeftoverFacts& facts, MonotonicTime now);
  MonotonicTime deadline() const { return deadline_; }
  bool is_finishing() const { return stage_ == Stage::kFinishing; }

 private:
  enum class Stage { kNone, kFinishing, kAsked, kKilled };

  LeftoverDeed Finishing(const LeftoverFacts& facts, MonotonicTime now);

  const LeftoverOptions options_;
  Stage stage_ = Stage::kNone;
  bool announced_ = false;
  MonotonicTime finish_by_;
  MonotonicTime deadline_ = MonotonicTime::InfiniteFuture();
};

}  // namespace convene::agent
