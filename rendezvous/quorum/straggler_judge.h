// PURE. Finds the part of a job that holds the others up, by what the ranks tell of their steps.
//
// Each rank's figures are the lower thirds of its last reports, of at least 20 steps (and three
// reports): every program pauses now and then for a step. The first 10 steps of an epoch do not
// count. Ranks of one place (RankProgress::place) do the same
// work, so each is compared with the median of its place:
//
//   rank   its own work takes longer than the median's
//   node   the same of all ranks of a node, where they are two or more
//   disk   its wait for samples is longer; or its last saves took twice as long as the others'
//   link   the rank that waits least, which waits for no other rank, waits longer than at the
//          epoch's beginning, and no rank is slow
//
// A rank that is alone in its place is compared with its own first figures: it is slow when its
// work has grown by more than the median rank's, and the others wait for it (its own wait has grown
// by less than theirs).
//
// Longer is: by 15 % of a step's own work (a lonely rank: 20 %, a link: 30 %), by four standard
// errors of the rank's median, and, in a place of four ranks or more, by three standard deviations
// among these ranks, which is 1.4826 times the median of the absolute deviations (MAD). A straggler
// is found when this has held for 8 of its steps, and gone when less than half of it has held for 8
// steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

enum class StragglerKind { kRank, kNode, kLink, kDisk };

// "rank", "node", "link", "disk".
const char* StragglerWord(StragglerKind kind);

struct Straggler {
  StragglerKind kind = StragglerKind::kRank;
  int rank = -1;     // global; of a node its first one; -1: a link between nodes that are not known
  int64_t node = 0;  // the caller's number of the rank's node
  double slower_by = 0;  // 0.3: a step of its own work takes 30 % longer
  std::string why;       // one line with the figures
  MonotonicTime since;
};

// Plain data; not thread-safe. A rank takes some 2 KB.
class StragglerJudge {
 public:
  static constexpr size_t kMostStragglers = 32;

  struct Change {
    bool is_found = false;  // else it is gone
    Straggler straggler;
  };

  // Forgets the epoch before.
  void BeginEpoch(int world_size);
  // A report of a rank's. `node`: the caller's number, the same for all ranks of a node.
  void Hear(int rank, int64_t node, const RankProgress& report);
  // Looks at all ranks: at most once a second, if any has reported new steps. The stragglers that
  // were found since the last look, and those that are gone.
  std::vector<Change> Judge(MonotonicTime now);
  // The slowest first, at most kMostStragglers.
  const std::vector<Straggler>& stragglers() const { return stragglers_; }

 private:
  struct Figures {
    double compute = 0;  // ms a step
    double wait = 0;
    double data = 0;
    double own() const { return compute + data; }
  };
  struct Sample {
    int steps = 0;
    Figures figures;
  };
  // How long something has been over its limit, or well under it, in steps.
  struct Suspicion {
    int64_t over_since = -1;
    int64_t under_since = -1;
    bool is_found = false;
    double slower_by = 0;
    std::string why;
    MonotonicTime since;
  };
  struct Rank {
    int64_t node = 0;
    int place = 0;
    int64_t first_step = -1;
    int64_t step = 0;
    std::deque<Sample> samples;
    int window_steps = 0;      // of the samples
    std::deque<double> saves;  // ms each, the last ones
    // Of the samples, once they are enough.
    std::optional<Figures> now;
    Figures error;  // the standard error of each
    std::optional<Figures> first;
    Suspicion slow;
    Suspicion loads;
    Suspicion saving;
  };
  using Key = std::tuple<StragglerKind, int64_t, int>;  // kind, node, rank

  static void AddSample(Rank& rank, const RankProgress& report);
  // How much longer than its like, in ms, and the limit from which on that counts.
  struct Excess {
    double ms = 0;
    double limit = 0;
    double slower_by = 0;
    std::function<std::string()> why;  // called where it is over its limit
  };
  static void Weigh(Suspicion& suspicion, int64_t step, const Excess& excess, MonotonicTime now);
  void JudgePlace(const std::vector<int>& ranks, MonotonicTime now);
  void JudgeLonely(int rank, const Figures& growth, MonotonicTime now);
  void JudgeSaves(MonotonicTime now);
  void JudgeLink(MonotonicTime now);
  // The median rank's growth of figures since the epoch's beginning, as a factor of own work and ms
  // of waits.
  Figures Growth() const;
  std::map<Key, Straggler> Found() const;

  int world_size_ = 0;
  bool has_news_ = false;
  MonotonicTime judged_;
  std::map<int, Rank> ranks_;  // by global rank
  Suspicion link_;
  int link_rank_ = -1;
  std::map<Key, Straggler> found_;
  std::vector<Straggler> stragglers_;
};

}  // namespace convene::rendezvous
