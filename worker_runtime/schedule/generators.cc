#include "worker_runtime/schedule/generators.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

using List = std::vector<Compute>;

struct Shape {
  int ranks;
  int virtual_stages;
  int microbatches;
};

// Writes one rank's list. Each call takes the next microbatch of its chunk and kind of pass; those
// that the step does not have are left out.
class ListWriter {
 public:
  explicit ListWriter(const Shape& shape)
      : microbatches_(shape.microbatches),
        forwards_(shape.ranks * shape.virtual_stages),
        backwards_(forwards_) {}

  void Forward(int chunk) { Add({ComputeKind::kForward, chunk, forwards_[chunk]++}); }
  void Backward(int chunk) { Add({ComputeKind::kBackward, chunk, backwards_[chunk]++}); }
  // The input half; the weight half waits for Weight or WeightOf.
  void BackwardInput(int chunk) {
    waiting_.push_back({ComputeKind::kBackwardWeight, chunk, backwards_[chunk]});
    Add({ComputeKind::kBackwardInput, chunk, backwards_[chunk]++});
  }
  // The weight half that has waited longest, of all chunks or of one; false when none waits.
  bool Weight() { return Take(waiting_.begin()); }
  bool WeightOf(int chunk) {
    return Take(absl::c_find_if(waiting_, [chunk](const Compute& c) { return c.chunk == chunk; }));
  }
  // The input half, and the weight half of the chunk that has waited longest.
  void BothHalves(int chunk) {
    BackwardInput(chunk);
    WeightOf(chunk);
  }

  List list;

 private:
  void Add(const Compute& compute) {
    if (compute.microbatch < microbatches_) list.push_back(compute);
  }
  bool Take(const std::deque<Compute>::iterator& weight) {
    if (weight == waiting_.end()) return false;
    Add(*weight);
    waiting_.erase(weight);
    return true;
  }

  const int microbatches_;
  std::vector<int> forwards_;  // [chunk]
  std::vector<int> backwards_;
  std::deque<Compute> waiting_;
};

// The microbatches go through a rank's chunks in rounds of at least as many as there are ranks
// (where there are so many), as even as possible, longer ones first. The first one of a round:
int RoundBegin(const Shape& shape, int round) {
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  return static_cast<int>((int64_t{shape.microbatches} * round + rounds - 1) / rounds);
}

// Forwards and backwards in turn, after `warm_up` forwards without a backward between them. The
// weight halves are done `weight_lag` passes behind the input halves; -1: both at once.
List LoopList(const Shape& shape, int rank, int warm_up, int weight_lag = -1) {
  std::vector<int> order;  // of the rank's chunks, counted from the embedding or from the head
  for (int round = 0; RoundBegin(shape, round) < shape.microbatches; ++round) {
    for (int local = 0; local < shape.virtual_stages; ++local) {
      order.insert(order.end(), RoundBegin(shape, round + 1) - RoundBegin(shape, round), local);
    }
  }
  const int passes = static_cast<int>(order.size());
  ListWriter out(shape);
  for (int pass = -std::min(warm_up, passes); pass < passes; ++pass) {
    const int ahead = pass + std::min(warm_up, passes);
    if (ahead < passes) out.Forward(order[ahead] * shape.ranks + rank);
    if (pass < 0) continue;
    const int chunk = (shape.virtual_stages - 1 - order[pass]) * shape.ranks + rank;
    weight_lag < 0 ? out.Backward(chunk) : out.BackwardInput(chunk);
    if (pass >= weight_lag) out.Weight();
  }
  while (out.Weight()) continue;
  return out.list;
}

List GPipe(const Shape& shape, int rank) { return LoopList(shape, rank, shape.microbatches); }

List OneForwardOneBackward(const Shape& shape, int rank) {
  return LoopList(shape, rank, shape.ranks - 1 - rank);
}

List Interleaved(const Shape& shape, int rank) {
  return LoopList(shape, rank,
                  (shape.virtual_stages - 1) * RoundBegin(shape, 1) + 2 * (shape.ranks - 1 - rank));
}

List ZeroBubbleH1(const Shape& shape, int rank) {
  return LoopList(shape, rank, shape.ranks - 1 - rank, /*weight_lag=*/rank);
}

// On V placements `down` is a rank's chunk on the way from rank 0, `up` the one on the way back.

List ZeroBubbleV(const Shape& shape, int rank) {
  ListWriter out(shape);
  const int down = rank;
  const int up = 2 * shape.ranks - 1 - rank;
  const int behind = shape.ranks - rank;  // ranks from here on
  const int enough = std::max(shape.microbatches, 2 * shape.ranks - 1);
  for (int i = 0; i < 2 * behind - 1; ++i) out.Forward(down);
  for (int i = 0; i < rank; ++i) {
    out.Forward(up);
    out.Forward(down);
  }
  for (int i = 0; i < behind; ++i) {
    out.Forward(up);
    out.BothHalves(up);
  }
  for (int i = shape.ranks; i < enough; ++i) {
    out.Forward(down);
    out.BothHalves(down);
    out.Forward(up);
    out.BothHalves(up);
  }
  for (int i = 0; i < rank; ++i) {
    out.BackwardInput(down);
    out.BackwardInput(up);
  }
  for (int i = 0; i < behind; ++i) out.BothHalves(down);
  while (out.WeightOf(up) || out.WeightOf(down)) continue;
  return out.list;
}

List DualPipeV(const Shape& shape, int rank) {
  ListWriter out(shape);
  const int down = rank;
  const int up = 2 * shape.ranks - 1 - rank;
  const int after = shape.ranks - rank - 1;  // ranks
  const int enough = std::max(shape.microbatches, 2 * shape.ranks);
  for (int i = 0; i < 2 * after; ++i) out.Forward(down);
  for (int i = 0; i <= rank; ++i) {
    out.Forward(down);
    out.Forward(up);
  }
  for (int i = 0; i < after; ++i) {
    out.BothHalves(up);
    out.Forward(up);
  }
  // Here DualPipeV overlaps each forward with the backward behind it.
  for (int i = 0; i < enough - 2 * shape.ranks + rank + 1; ++i) {
    out.Forward(down);
    out.Backward(up);
    out.Forward(up);
    out.Backward(down);
  }
  for (int i = 0; i < after; ++i) {
    out.Backward(up);
    out.Forward(up);
    out.Backward(down);
  }
  // The second half of what is left leaves its weight halves to fill the waiting at the end.
  for (int i = 0; i <= 2 * rank + 1; ++i) {
    const int chunk = i % 2 == 0 ? up : down;
    i <= rank ? out.Backward(chunk) : out.BackwardInput(chunk);
  }
  for (int i = 0; i < after; ++i) {
    out.Weight();
    out.BackwardInput(down);
  }
  while (out.Weight()) continue;
  return out.list;
}

// Chunk c on rank c mod p: a microbatch goes round the ranks, once for each virtual stage.
int LoopRankOf(const Shape& shape, int chunk) { return chunk % shape.ranks; }

// From rank 0 to the last one and back, so that rank 0 holds the embedding and the head.
int VRankOf(const Shape& shape, int chunk) { return std::min(chunk, 2 * shape.ranks - 1 - chunk); }

struct Kind {
  absl::string_view name;
  int least_virtual_stages;
  int most_virtual_stages;
  List (*list)(const Shape& shape, int rank);
  int (*rank_of)(const Shape& shape, int chunk);
};

constexpr Kind kKinds[] = {
    {"gpipe", 1, 1, GPipe, LoopRankOf},
    {"1f1b", 1, 1, OneForwardOneBackward, LoopRankOf},
    {"interleaved", 2, std::numeric_limits<int>::max(), Interleaved, LoopRankOf},
    {"zb-h1", 1, 1, ZeroBubbleH1, LoopRankOf},
    {"zb-v", 2, 2, ZeroBubbleV, VRankOf},
    {"dualpipe-v", 2, 2, DualPipeV, VRankOf},
};

}  // namespace

absl::StatusOr<Schedule> MakeSchedule(absl::string_view name, int ranks, int virtual_stages,
                                      int microbatches) {
  CONVENE_CHECK(ranks >= 1 && microbatches >= 1);
  const Kind* kind = absl::c_find_if(kKinds, [&](const Kind& k) { return k.name == name; });
  if (kind == std::end(kKinds)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", name, "' is no pipeline schedule: the schedules are ",
        absl::StrJoin(kKinds, ", ",
                      [](std::string* out, const Kind& k) { absl::StrAppend(out, k.name); })));
  }
  if (virtual_stages == 0) virtual_stages = kind->least_virtual_stages;
  if (virtual_stages < kind->least_virtual_stages || virtual_stages > kind->most_virtual_stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pipeline schedule ", name, " has ", kind->least_virtual_stages,
                     kind->least_virtual_stages == kind->most_virtual_stages ? "" : " or more",
                     " virtual stages a rank, not ", virtual_stages));
  }
  const Shape shape = {ranks, virtual_stages, microbatches};
  Schedule schedule;
  schedule.microbatches = microbatches;
  for (int chunk = 0; chunk < ranks * virtual_stages; ++chunk) {
    schedule.placement.push_back(kind->rank_of(shape, chunk));
  }
  for (int rank = 0; rank < ranks; ++rank) schedule.ranks.push_back(kind->list(shape, rank));
  return schedule;
}

int FirstRound(int ranks, int microbatches) {
  return RoundBegin({.ranks = ranks, .virtual_stages = 1, .microbatches = microbatches}, 1);
}

Schedule ForwardOnly(const ChunkPlacement& placement, int microbatches) {
  const int ranks = 1 + *absl::c_max_element(placement);
  const int chunks = static_cast<int>(placement.size());
  Schedule schedule = {placement, microbatches, std::vector<List>(ranks)};
  // By a clock: at each time the chunks, of all ranks, whose input the time before has made.
  for (int time = 0; time < chunks + microbatches - 1; ++time) {
    for (int chunk = std::max(0, time - microbatches + 1); chunk <= std::min(time, chunks - 1);
         ++chunk) {
      schedule.ranks[placement[chunk]].push_back({ComputeKind::kForward, chunk, time - chunk});
    }
  }
  return schedule;
}

}  // namespace convene::worker
