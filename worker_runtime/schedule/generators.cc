#include "worker_runtime/schedule/generators.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>
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

// Forwards and backwards in turn, on a loop placement. The first `warm_up` forwards of a rank have
// no backward between them. Where `splits`, a rank does the weight halves `weight_lag` passes
// behind the input halves.
struct LoopPlan {
  int warm_up;
  bool splits = false;
  int weight_lag = 0;
};

// The microbatches go through a rank's chunks in rounds of at least as many as there are ranks
// (where there are so many), as even as possible, longer ones first. The first one of a round:
int RoundBegin(const Shape& shape, int round) {
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  return (shape.microbatches * round + rounds - 1) / rounds;
}

// The order in which a rank's chunks go forward, as (number of the chunk on the rank, microbatch).
std::vector<std::pair<int, int>> ForwardOrder(const Shape& shape) {
  std::vector<std::pair<int, int>> order;
  for (int round = 0; RoundBegin(shape, round) < shape.microbatches; ++round) {
    for (int local = 0; local < shape.virtual_stages; ++local) {
      const int end = RoundBegin(shape, round + 1);
      for (int microbatch = RoundBegin(shape, round); microbatch < end; ++microbatch) {
        order.emplace_back(local, microbatch);
      }
    }
  }
  return order;
}

List LoopList(const Shape& shape, int rank, const LoopPlan& plan) {
  const std::vector<std::pair<int, int>> order = ForwardOrder(shape);
  const int passes = static_cast<int>(order.size());
  List list;
  const auto add_forward = [&](int pass) {
    const auto [local, microbatch] = order[pass];
    list.push_back({ComputeKind::kForward, local * shape.ranks + rank, microbatch});
  };
  const auto add_backward = [&](ComputeKind kind, int pass) {
    const auto [local, microbatch] = order[pass];
    const int chunk = (shape.virtual_stages - 1 - local) * shape.ranks + rank;
    list.push_back({kind, chunk, microbatch});
  };
  const int warm_up = std::min(plan.warm_up, passes);
  for (int pass = 0; pass < warm_up; ++pass) add_forward(pass);
  for (int pass = 0; pass < passes; ++pass) {
    if (warm_up + pass < passes) add_forward(warm_up + pass);
    add_backward(plan.splits ? ComputeKind::kBackwardInput : ComputeKind::kBackward, pass);
    if (plan.splits && pass >= plan.weight_lag) {
      add_backward(ComputeKind::kBackwardWeight, pass - plan.weight_lag);
    }
  }
  if (!plan.splits) return list;
  for (int pass = std::max(0, passes - plan.weight_lag); pass < passes; ++pass) {
    add_backward(ComputeKind::kBackwardWeight, pass);
  }
  return list;
}

List GPipe(const Shape& shape, int rank) {
  return LoopList(shape, rank, {.warm_up = shape.microbatches});
}

List OneForwardOneBackward(const Shape& shape, int rank) {
  return LoopList(shape, rank, {.warm_up = shape.ranks - 1 - rank});
}

List Interleaved(const Shape& shape, int rank) {
  const int round = RoundBegin(shape, 1);
  return LoopList(shape, rank,
                  {.warm_up = (shape.virtual_stages - 1) * round + 2 * (shape.ranks - 1 - rank)});
}

List ZeroBubbleH1(const Shape& shape, int rank) {
  return LoopList(shape, rank,
                  {.warm_up = shape.ranks - 1 - rank, .splits = true, .weight_lag = rank});
}

// A rank's list on a V placement: `down` is its chunk on the way from rank 0, `up` the one on the
// way back. Each Add takes the next microbatch of its chunk and kind, and leaves out those that the
// step does not have.
class VList {
 public:
  VList(const Shape& shape, int rank)
      : down(rank), up(2 * shape.ranks - 1 - rank), microbatches_(shape.microbatches) {}

  void Forward(int chunk) { Add(ComputeKind::kForward, chunk, forwards_[chunk == up]++); }
  void Backward(int chunk) { Add(ComputeKind::kBackward, chunk, backwards_[chunk == up]++); }
  // The input half; the weight half waits for WeightOf or NextWeight.
  void BackwardInput(int chunk) {
    waiting_.push_back({ComputeKind::kBackwardWeight, chunk, backwards_[chunk == up]});
    Add(ComputeKind::kBackwardInput, chunk, backwards_[chunk == up]++);
  }
  // The weight half that has waited longest, of `chunk` or of both; false when none waits.
  bool WeightOf(int chunk) {
    return TakeWeight(
        absl::c_find_if(waiting_, [chunk](const Compute& c) { return c.chunk == chunk; }));
  }
  bool NextWeight() { return TakeWeight(waiting_.begin()); }
  void BackwardInTwoHalves(int chunk) {
    BackwardInput(chunk);
    WeightOf(chunk);
  }

  const int down;
  const int up;
  List list;

 private:
  void Add(ComputeKind kind, int chunk, int microbatch) {
    if (microbatch < microbatches_) list.push_back({kind, chunk, microbatch});
  }
  bool TakeWeight(std::deque<Compute>::iterator weight) {
    if (weight == waiting_.end()) return false;
    Add(weight->kind, weight->chunk, weight->microbatch);
    waiting_.erase(weight);
    return true;
  }

  const int microbatches_;
  int forwards_[2] = {0, 0};  // down, up
  int backwards_[2] = {0, 0};
  std::deque<Compute> waiting_;
};

List ZeroBubbleV(const Shape& shape, int rank) {
  VList v(shape, rank);
  const int behind = shape.ranks - rank;  // ranks from here on
  const int enough = std::max(shape.microbatches, 2 * shape.ranks - 1);
  for (int i = 0; i < 2 * behind - 1; ++i) v.Forward(v.down);
  for (int i = 0; i < rank; ++i) {
    v.Forward(v.up);
    v.Forward(v.down);
  }
  for (int i = 0; i < behind; ++i) {
    v.Forward(v.up);
    v.BackwardInTwoHalves(v.up);
  }
  for (int i = shape.ranks; i < enough; ++i) {
    v.Forward(v.down);
    v.BackwardInTwoHalves(v.down);
    v.Forward(v.up);
    v.BackwardInTwoHalves(v.up);
  }
  for (int i = 0; i < rank; ++i) {
    v.BackwardInput(v.down);
    v.BackwardInput(v.up);
  }
  for (int i = 0; i < behind; ++i) v.BackwardInTwoHalves(v.down);
  while (v.WeightOf(v.up) || v.WeightOf(v.down)) continue;
  return v.list;
}

List DualPipeV(const Shape& shape, int rank) {
  VList v(shape, rank);
  const int after = shape.ranks - rank - 1;  // ranks
  const int enough = std::max(shape.microbatches, 2 * shape.ranks);
  for (int i = 0; i < 2 * after; ++i) v.Forward(v.down);
  for (int i = 0; i <= rank; ++i) {
    v.Forward(v.down);
    v.Forward(v.up);
  }
  for (int i = 0; i < after; ++i) {
    v.BackwardInTwoHalves(v.up);
    v.Forward(v.up);
  }
  // Here DualPipeV overlaps each forward with the backward behind it.
  for (int i = 0; i < enough - 2 * shape.ranks + rank + 1; ++i) {
    v.Forward(v.down);
    v.Backward(v.up);
    v.Forward(v.up);
    v.Backward(v.down);
  }
  for (int i = 0; i < after; ++i) {
    v.Backward(v.up);
    v.Forward(v.up);
    v.Backward(v.down);
  }
  // The second half of what is left leaves its weight halves to fill the waiting at the end.
  for (int i = 0; i <= 2 * rank + 1; ++i) {
    const int chunk = i % 2 == 0 ? v.up : v.down;
    i <= rank ? v.Backward(chunk) : v.BackwardInput(chunk);
  }
  for (int i = 0; i < after; ++i) {
    v.NextWeight();
    v.BackwardInput(v.down);
  }
  while (v.NextWeight()) continue;
  return v.list;
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

Schedule ForwardOnly(const ChunkPlacement& placement, int microbatches) {
  const int ranks = 1 + *absl::c_max_element(placement);
  const int chunks = static_cast<int>(placement.size());
  Schedule schedule = {placement, microbatches, std::vector<List>(ranks)};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      schedule.ranks[placement[chunk]].push_back({ComputeKind::kForward, chunk, microbatch});
    }
  }
  // A rank starts a microbatch every `chunks / ranks` passes, and each chunk is one pass later than
  // the one before it. Any key that grows along a microbatch's way makes an order without deadlock.
  for (List& list : schedule.ranks) {
    absl::c_stable_sort(list, [&](const Compute& a, const Compute& b) {
      return a.chunk + chunks / ranks * a.microbatch < b.chunk + chunks / ranks * b.microbatch;
    });
  }
  return schedule;
}

}  // namespace convene::worker
