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
  int lowest = chunk;  // the chunks from here to `chunk` share the slot
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
    for (int chunk = lifetime.lowest; chunk <= lifetime.chunk; ++chunk) {
      slots.of[{chunk, lifetime.microbatch}] = static_cast<int>(slot - taken_until.begin());
    }
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
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      PostReceives(static_cast<int>(rank), receives_ahead);
    }
  }

  RankPlan Plan(int rank) const {
    std::vector<Lifetime> saved;
    std::vector<Lifetime> deferred;
    std::vector<Lifetime> heads;
    std::vector<Lifetime> activations;
    std::vector<Lifetime> gradients;
    for (const Compute& compute : schedule_.ranks[rank]) {
      if (compute.kind != ComputeKind::kForward) continue;
      const auto [kind, chunk, microbatch] = compute;
      const auto [forward, input, weight] = timeline_.passes[chunk][microbatch];
      const int last = std::max(forward, weight);
      saved.push_back({forward, last, chunk, microbatch});
      if (input < weight) deferred.push_back({input, weight, chunk, microbatch});
      if (chunk + 1 == static_cast<int>(schedule_.placement.size())) {
        heads.push_back({forward, std::max(forward, input), chunk, microbatch});
      }
      if (chunk > 0) activations.push_back({begins_[rank][forward], last, chunk, microbatch});
      if (SendPeer(compute) >= 0) {
        activations.push_back({forward, SentUntil(rank, forward), chunk + 1, microbatch});
      }
      // A gradient goes through neighbouring chunks of one rank in one slot.
      if (input < 0 || Holds(rank, chunk + 1)) continue;
      int lowest = chunk;
      while (Holds(rank, lowest - 1)) --lowest;
      const int end = timeline_.passes[lowest][microbatch].input;
      gradients.push_back({begins_[rank][input], lowest > 0 ? SentUntil(rank, end) : end, chunk,
                           microbatch, lowest});
    }
    return {Instructions(rank), Assign(saved),       Assign(deferred),
            Assign(heads),      Assign(activations), Assign(gradients)};
  }

 private:
  bool Holds(int rank, int chunk) const {
    return chunk >= 0 && chunk < static_cast<int>(schedule_.placement.size()) &&
           schedule_.placement[chunk] == rank;
  }
  // The rank of the chunk `other`, or -1 where no message goes between the two.
  int Peer(const Compute& compute, int other) const {
    return other < 0 || schedule_.placement[other] == schedule_.placement[compute.chunk]
               ? -1
               : schedule_.placement[other];
  }
  int SendPeer(const Compute& compute) const { return Peer(compute, ReaderOf(schedule_, compute)); }

  // An order in which each compute comes after all computes that it needs: by its start, then by
  // its place on the way of a microbatch through all chunks and back.
  std::pair<double, int> OrderOf(int rank, int position) const {
    const auto [kind, chunk, microbatch] = schedule_.ranks[rank][position];
    const int chunks = static_cast<int>(schedule_.placement.size());
    return {timeline_.start[rank][position],
            kind == ComputeKind::kForward ? chunk : 2 * chunks - 1 - chunk};
  }

  void PostReceives(int rank, int receives_ahead) {
    std::vector<int>& begins = begins_.emplace_back();
    std::vector<Receive>& receives = receives_.emplace_back();
    for (const Compute& compute : schedule_.ranks[rank]) {
      const int read = static_cast<int>(begins.size());
      const int source = SourceOf(schedule_, compute);
      const int made =
          source < 0 ? read : timeline_.passes[source][compute.microbatch].Along(compute.kind);
      begins.push_back(made);
      if (const int sender = Peer(compute, source); sender >= 0) {
        int post = read;
        while (post > std::max(0, read - receives_ahead) &&
               OrderOf(sender, made) < OrderOf(rank, post - 1)) {
          --post;
        }
        receives.push_back({post, read, sender, made});
      }
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
    for (const Receive& receive : receives) begins[receive.read] = receive.post;
  }

  // The last compute that must not write over what the one at `position` sends.
  int SentUntil(int rank, int position) const {
    const Compute& compute = schedule_.ranks[rank][position];
    const Passes& reader = timeline_.passes[ReaderOf(schedule_, compute)][compute.microbatch];
    const int peer = SendPeer(compute);
    const double posted = timeline_.start[peer][begins_[peer][reader.Along(compute.kind)]];
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
  std::vector<std::vector<Receive>> receives_;  // [rank], in the order of posting
  // [rank][position]: the compute at which, or right before which, what this one reads is written
  // on its rank: its receive's post, or the source.
  std::vector<std::vector<int>> begins_;
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
