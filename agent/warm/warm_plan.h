// PURE. Warm workers: which commands may have them, with which environment, and what comes next.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::agent {

// Why the workers of this command (program and arguments) cannot be warm, for a person; "": they
// can. convene-train can, and Python where it looks at PYTHONPATH and imports `site`.
std::string WarmRefusal(const std::vector<std::string>& command);

// The same of workers that are bound to CPUs of their own. An OpenMP library that binds its threads
// looks at the CPUs when it is loaded: forks of one process would all have that one's.
std::string BindingRefusal(const std::map<std::string, std::string>& environment);

// The variables that each worker has for itself, or each epoch anew; with `own_device` also those
// that name its device. The parent of spares has none of them, and a module whose import asks for
// one is left out.
std::set<std::string> PlaceVariables(bool own_device);

// The variables in `environment` ("NAME=value" strings) that name a worker's place on its node. A
// spare has them before its rank is known, so that it can open the device that the worker will
// have.
std::vector<std::string> SlotVariables(const std::vector<std::string>& environment);

// The local ranks for which `count` spares are kept, one an entry: all of `workers` ranks but
// `cold`, in turns. Empty where no rank is left.
std::vector<int> SpareSlots(int count, int workers, std::optional<int> cold);

// `environment` of `program` for a worker that records, or without `places` for the parent of
// spares. Both have contract::kWarm. Python's also has the folder of `socket`, with warm.py, first
// in PYTHONPATH; kWarm then holds the worker's own PYTHONPATH with ':' before it, or nothing.
std::vector<std::string> RecorderEnvironment(const std::string& program,
                                             std::vector<std::string> environment,
                                             const std::string& socket);
std::vector<std::string> ParentEnvironment(const std::string& program,
                                           std::vector<std::string> environment,
                                           const std::set<std::string>& places,
                                           const std::string& socket);

// The life of parent and spares:
//
//   unknown ──Recorded──► recorded ──kStartParent──► warming ──Warm──► warm (kFork, Used)
//                            ▲                          ▲                │   │
//                            │                          └────Recorded────┘   │
//                            └─────────────ParentEnded────────────────────────┘
//   all ──Changed──► unknown        all ──too many ParentEnded──► off
//
// Spares outlive their parent. A record of an earlier run (Kept) counts as one of this run, and the
// first start waits for its spares.
class WarmPlan {
 public:
  enum class Deed {
    kNone,         // wait for what happens, or until deadline()
    kStartParent,  // ParentConnected or ParentEnded follows
    kImport,       // the parent is to import what was recorded; Warm or ParentEnded follows
    kEndParent,    // it takes too long; ParentEnded follows
    kFork,         // the parent is to fork one spare, which counts until Used or SpareEnded
  };
  // Parents that end, or rounds of spares that die, by themselves between two uses of spares,
  // before there are no more. A parent that ended because another module is to be left out does not
  // count: the next one comes further.
  static constexpr int kMostFailures = 4;
  // After so many modules that were left out each further one counts.
  static constexpr size_t kMostLeftOut = 32;
  // For the start of the parent, and for its imports.
  static constexpr absl::Duration kWarmLimit = absl::Minutes(5);
  // After a use of spares the workers begin; the forks for the next use come later. So do those
  // after a spare has died, for it may have opened a device: then later by as much for each failure
  // since the last use.
  static constexpr absl::Duration kRefillDelay = absl::Seconds(2);

  // `count`: spares to keep.
  explicit WarmPlan(int count) : count_(count) {}

  // The deed for now, which the caller does. Ask again until it is kNone.
  Deed Next(MonotonicTime now);
  MonotonicTime deadline() const;

  void Recorded();  // by a worker, for the first time or more than before
  // By a worker of an earlier run; no worker of this run has started. The first start waits for
  // its spares until `start_by`.
  void Kept(MonotonicTime start_by);
  // Whether the first start waits, when `ready` spares could become workers.
  bool HoldsStart(int ready, MonotonicTime now) const {
    return now < start_by_ && ready < count_ && phase_ != Phase::kUnknown && phase_ != Phase::kOff;
  }
  void StartBegins() { start_by_ = MonotonicTime(); }  // or never waits
  void ParentConnected() { is_connected_ = true; }
  void Warm(MonotonicTime now);
  void LeaveOut(const std::string& module);  // ParentEnded follows
  void ParentEnded();
  void TurnOff() { phase_ = Phase::kOff; }  // no parent can be started any more
  void SpareEnded() { --spares_; }          // by the caller, before its use
  void SpareDied(MonotonicTime now);        // by itself, before its use
  void Used(MonotonicTime now);             // a spare became a worker
  // A file or a variable: what was recorded is worth nothing. ParentEnded and SpareEnded follow.
  void Changed();

  bool wants_record() const { return phase_ == Phase::kUnknown; }
  bool is_off() const { return phase_ == Phase::kOff; }
  const std::set<std::string>& left_out() const { return left_out_; }

 private:
  enum class Phase { kUnknown, kRecorded, kWarming, kWarm, kOff };

  const int count_;
  Phase phase_ = Phase::kUnknown;
  bool has_parent_ = false;
  bool is_connected_ = false;
  bool must_import_ = false;
  int spares_ = 0;  // that live or are being forked
  int failures_ = 0;
  bool has_learned_ = false;  // what to leave out, from the parent that is there
  std::set<std::string> left_out_;
  MonotonicTime warm_by_ = MonotonicTime::InfiniteFuture();
  MonotonicTime fork_at_;
  MonotonicTime start_by_;  // the first start waits until then; zero: it does not
};

}  // namespace convene::agent
