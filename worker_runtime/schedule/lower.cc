#include "worker_runtime/schedule/lower.h"

#include <algorithm>
#include <tuple>

#include "absl/algorithm/container.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/schedule/simulate.h"

namespace convene::worker {
namespace {

// From the compute at position `begin` of a rank's list to the one at `end`, both included.
struct Lifetime {
  int begin;
  int end;
  int chunk;
  int microbatch;
};

// First fit by beginnings: as many slots as there are lifetimes at one time, which is the least.
Slots Assign(std::vector<Lifetime> lifetimes) {
  absl::c_sort(lifetimes, [](const Lifetime& a, const Lifetime& b) {
    return std::tie(a.begin, a.chunk, a.microbatch) < std::tie(b.begin, b.chunk, b.microbatch);
  });
  Slots slots;
  std::vector<int> taken_until;  // [slot]
  for (const Lifetime& lifetime : lifetimes) {
    auto slot = absl::c_find_if(taken_until, [&](int end) { return end < lifetime.begin; });
    if (slot == taken_until.end()) slot = taken_until.insert(slot, 0);
    *slot = lifetime.end;
    slots.of[{lifetime.chunk, lifetime.microbatch}] = static_cast<int>(slot - taken_until.begin());
  }
  slots.count = static_cast<int>(taken_until.size());
  return slots;
}

// A message that comes in: posted right before the compute at `post`, read by the one at `read`.
struct Receive {
  int post;
  int read;
  int sender;
  int sent;  // position in the sender's list of the compute that makes it
};

class Lowering {
 public:
  Lowering(const Schedule& schedule, Timeline timeline, int receives_ahead)
      : schedule_(schedule), timeline_(std::move(timeline)) {
    for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
      receives_.push_back(Receives(rank, receives_ahead));
      posts_.emplace_back(schedule.ranks[rank].size());
      for (const Receive& receive : receives_[rank]) posts_[rank][receive.read] = receive.post;
    }
  }

  RankPlan Plan(int rank) const {
    std::vector<Lifetime> saved;
    std::vector<Lifetime> deferred;
    std::vector<Lifetime> activations;
    std::vector<Lifetime> gradients;
    for (const Compute& compute : schedule_.ranks[rank]) {
      if (compute.kind != ComputeKind::kForward) continue;
      const auto [kind, chunk, microbatch] = compute;
      const auto [forward, input, weight] = timeline_.passes[chunk][microbatch];
      const int last = std::max(forward, weight);
      saved.push_back({forward, last, chunk, microbatch});
      if (input < weight) deferred.push_back({input, weight, chunk, microbatch});
      if (chunk > 0) activations.push_back({BeginOfInput(rank, compute), last, chunk, microbatch});
      if (SendPeer(compute) >= 0) {
        activations.push_back({forward, SentUntil(rank, forward), chunk + 1, microbatch});
      }
      // Of neighbouring chunks on one rank the uppermost takes the gradient's slot for all.
      if (input < 0 || Holds(rank, chunk + 1)) continue;
      int lowest = chunk;
      while (Holds(rank, lowest - 1)) --lowest;
      const int end = timeline_.passes[lowest][microbatch].input;
      gradients.push_back({chunk + 1 < chunks() ? posts_[rank][input] : input,
                           lowest > 0 ? SentUntil(rank, end) : end, chunk, microbatch});
    }
    RankPlan plan = {Instructions(rank), Assign(saved), Assign(deferred), Assign(activations),
                     Assign(gradients)};
    for (int chunk = chunks() - 2; chunk >= 0 && plan.gradients.count > 0; --chunk) {
      if (!Holds(rank, chunk) || !Holds(rank, chunk + 1)) continue;
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        plan.gradients.of[{chunk, microbatch}] = plan.gradients.of.at({chunk + 1, microbatch});
      }
    }
    return plan;
  }

 private:
  int chunks() const { return static_cast<int>(schedule_.placement.size()); }
  bool Holds(int rank, int chunk) const {
    return chunk >= 0 && chunk < chunks() && schedule_.placement[chunk] == rank;
  }
  // The rank of the chunk `other`, or -1 where no message goes between the two.
  int Peer(const Compute& compute, int other) const {
    return other < 0 || schedule_.placement[other] == schedule_.placement[compute.chunk]
               ? -1
               : schedule_.placement[other];
  }
  int SendPeer(const Compute& compute) const { return Peer(compute, ReaderOf(schedule_, compute)); }

  // In the order of posting.
  std::vector<Receive> Receives(int rank, int receives_ahead) const {
    std::vector<Receive> receives;
    for (int read = 0; const Compute& compute : schedule_.ranks[rank]) {
      const int source = SourceOf(schedule_, compute);
      if (const int sender = Peer(compute, source); sender >= 0) {
        receives.push_back({std::max(0, read - receives_ahead), read, sender,
                            timeline_.passes[source][compute.microbatch].Along(compute.kind)});
      }
      ++read;
    }
    absl::c_sort(receives, [](const Receive& a, const Receive& b) {
      return std::tie(a.sender, a.sent) < std::tie(b.sender, b.sent);
    });
    for (size_t i = receives.size(); i-- > 1;) {
      if (receives[i - 1].sender != receives[i].sender) continue;
      receives[i - 1].post = std::min(receives[i - 1].post, receives[i].post);
    }
    absl::c_stable_sort(receives,
                        [](const Receive& a, const Receive& b) { return a.post < b.post; });
    return receives;
  }

  // The first compute before or at which the input of a forward is written.
  int BeginOfInput(int rank, const Compute& forward) const {
    if (Holds(rank, forward.chunk - 1)) {
      return timeline_.passes[forward.chunk - 1][forward.microbatch].forward;
    }
    return posts_[rank][timeline_.passes[forward.chunk][forward.microbatch].forward];
  }

  // The last compute that must not write over what the one at `position` sends.
  int SentUntil(int rank, int position) const {
    const Compute& compute = schedule_.ranks[rank][position];
    const Passes& reader = timeline_.passes[ReaderOf(schedule_, compute)][compute.microbatch];
    const int peer = SendPeer(compute);
    const double posted = timeline_.start[peer][posts_[peer][reader.Along(compute.kind)]];
    const std::vector<double>& start = timeline_.start[rank];
    const int after = static_cast<int>(absl::c_upper_bound(start, posted) - start.begin());
    return std::max(position + 1, after - 1);
  }

  std::vector<Instruction> Instructions(int rank) const {
    const std::vector<Compute>& list = schedule_.ranks[rank];
    std::vector<Instruction> instructions;
    auto receive = receives_[rank].begin();
    for (int position = 0; const Compute& compute : list) {
      for (; receive != receives_[rank].end() && receive->post == position; ++receive) {
        instructions.push_back({InstructionKind::kReceive, list[receive->read], receive->sender});
      }
      instructions.push_back({InstructionKind::kCompute, compute});
      const int peer = SendPeer(compute);
      if (peer >= 0) instructions.push_back({InstructionKind::kSend, compute, peer});
      ++position;
    }
    return instructions;
  }

  const Schedule& schedule_;
  const Timeline timeline_;
  std::vector<std::vector<Receive>> receives_;  // [rank]
  std::vector<std::vector<int>> posts_;         // [rank][Receive::read]: its post
};

}  // namespace

absl::StatusOr<std::vector<RankPlan>> Lower(const Schedule& schedule, int receives_ahead) {
  CONVENE_CHECK(receives_ahead >= 0);
  CONVENE_ASSIGN_OR_RETURN(Timeline timeline, Simulate(schedule));
  const Lowering lowering(schedule, std::move(timeline), receives_ahead);
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    plans.push_back(lowering.Plan(rank));
  }
  return plans;
}

}  // namespace convene::worker
