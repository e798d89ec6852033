#include "worker_runtime/schedule/testing/play.h"

#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// A message between two ranks: the sends and the receives of one ordered pair match by number.
struct Channel {
  std::vector<Compute> sent;    // the computes that made them
  std::vector<Compute> posted;  // the computes that will read them
  bool Done(size_t number, SendRule rule) const {
    return rule == SendRule::kBuffered || posted.size() > number;
  }
};

using Key = std::pair<int, int>;  // chunk, microbatch

// Where a slot's last send is: the slot is free once that is done.
struct Pending {
  const Channel* channel = nullptr;
  size_t number = 0;
};

class Memory {
 public:
  Memory(const Slots& slots, SendRule rule)
      : slots_(slots), rule_(rule), tenant_(slots.count), pending_(slots.count) {}

  // False: the slot still waits for a send.
  bool Free(Key key) const {
    const Pending& pending = pending_[Of(key)];
    return pending.channel == nullptr || pending.channel->Done(pending.number, rule_);
  }
  absl::Status Take(Key key) {
    if (live_[Of(key)]) return absl::FailedPreconditionError("it writes over what is needed");
    live_[Of(key)] = true;
    pending_[Of(key)] = {};
    tenant_[Of(key)] = key;
    return absl::OkStatus();
  }
  absl::Status Check(Key key) {
    if (live_[Of(key)] && tenant_[Of(key)] == key) return absl::OkStatus();
    return absl::FailedPreconditionError("what it reads does not lie in its slot");
  }
  void Rename(Key key, Key other) { tenant_[Of(key)] = other; }
  void Release(Key key, Pending pending = {}) {
    live_[Of(key)] = false;
    pending_[Of(key)] = pending;
  }
  bool empty() const {
    for (const auto& [slot, live] : live_) {
      if (live) return false;
    }
    return true;
  }

 private:
  size_t Of(Key key) const { return slots_.of.at(key); }

  const Slots& slots_;
  const SendRule rule_;
  std::vector<Key> tenant_;
  std::vector<Pending> pending_;
  std::map<size_t, bool> live_;
};

struct Rank {
  Rank(const RankPlan& plan, SendRule rule)
      : instructions(plan.instructions),
        saved(plan.saved, rule),
        deferred(plan.deferred, rule),
        activations(plan.activations, rule),
        gradients(plan.gradients, rule) {}
  const std::vector<Instruction>& instructions;
  size_t next = 0;
  Memory saved;
  Memory deferred;
  Memory activations;
  Memory gradients;
  std::map<Key, std::pair<const Channel*, size_t>> arrivals[2];  // forward, backward: [reader]
};

class Player {
 public:
  Player(const Schedule& schedule, const std::vector<RankPlan>& plans, SendRule rule)
      : schedule_(schedule), chunks_(static_cast<int>(schedule.placement.size())) {
    for (const RankPlan& plan : plans) ranks_.emplace_back(plan, rule);
    for (const std::vector<Compute>& list : schedule.ranks) {
      for (const Compute& compute : list) trains_ |= compute.kind != ComputeKind::kForward;
    }
  }

  absl::Status Run(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<size_t> going;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) going.push_back(rank);
    std::vector<size_t> tried;
    while (!going.empty()) {
      const size_t drawn = random() % going.size();
      const size_t rank = going[drawn];
      going.erase(going.begin() + static_cast<std::ptrdiff_t>(drawn));
      bool moved = false;
      while (ranks_[rank].next < ranks_[rank].instructions.size()) {
        absl::StatusOr<bool> done = Do(static_cast<int>(rank));
        if (!done.ok()) return Annotate(done.status(), Place(rank));
        if (!*done) break;
        ++ranks_[rank].next;
        moved = true;
        if (random() % 2 == 0) break;
      }
      tried.push_back(rank);
      if (!moved) continue;
      // The ranks that were stuck may go on now.
      going.insert(going.end(), tried.begin(), tried.end());
      tried.clear();
    }
    return CheckEnd();
  }

 private:
  absl::StatusOr<bool> Do(int index) {
    Rank& rank = ranks_[index];
    const Instruction& instruction = rank.instructions[rank.next];
    switch (instruction.kind) {
      case InstructionKind::kReceive:
        return Receive(index, instruction);
      case InstructionKind::kSend:
        return Send(index, instruction);
      case InstructionKind::kCompute:
        return instruction.compute.kind == ComputeKind::kForward
                   ? Forward(index, instruction.compute)
                   : Backward(index, instruction.compute);
    }
    return absl::InternalError("unknown instruction");
  }

  absl::StatusOr<bool> Receive(int index, const Instruction& instruction) {
    Rank& rank = ranks_[index];
    const bool forward = instruction.compute.kind == ComputeKind::kForward;
    Memory& memory = forward ? rank.activations : rank.gradients;
    const Key key = KeyOf(instruction.compute);
    if (!memory.Free(key)) return false;
    CONVENE_RETURN_IF_ERROR(memory.Take(key));
    Channel& channel = channels_[{instruction.peer, index}];
    rank.arrivals[forward ? 0 : 1][key] = {&channel, channel.posted.size()};
    channel.posted.push_back(instruction.compute);
    return true;
  }

  absl::StatusOr<bool> Send(int index, const Instruction& instruction) {
    Rank& rank = ranks_[index];
    Channel& channel = channels_[{index, instruction.peer}];
    const auto [kind, chunk, microbatch] = instruction.compute;
    const bool forward = kind == ComputeKind::kForward;
    Memory& memory = forward ? rank.activations : rank.gradients;
    const Key key = {forward ? chunk + 1 : chunk, microbatch};
    CONVENE_RETURN_IF_ERROR(memory.Check(key));
    memory.Release(key, {&channel, channel.sent.size()});
    channel.sent.push_back(instruction.compute);
    return true;
  }

  // Whether the message that `compute` reads is there.
  absl::StatusOr<bool> Arrived(int index, const Compute& compute) {
    const bool forward = compute.kind == ComputeKind::kForward;
    auto& arrivals = ranks_[index].arrivals[forward ? 0 : 1];
    const auto found = arrivals.find(KeyOf(compute));
    if (found == arrivals.end()) return absl::FailedPreconditionError("nobody receives its input");
    const auto [channel, number] = found->second;
    if (channel->sent.size() <= number) return false;
    const Compute& sent = channel->sent[number];
    const bool sent_forward = sent.kind == ComputeKind::kForward;
    if (sent_forward != forward || sent.microbatch != compute.microbatch ||
        sent.chunk != compute.chunk + (forward ? -1 : 1)) {
      return absl::FailedPreconditionError(absl::StrCat("it receives ", ToString(sent)));
    }
    return true;
  }

  bool IsLocal(int index, int chunk) const {
    return chunk >= 0 && chunk < chunks_ && schedule_.placement[chunk] == index;
  }
  static Key KeyOf(const Compute& compute) { return {compute.chunk, compute.microbatch}; }

  absl::StatusOr<bool> Forward(int index, const Compute& compute) {
    Rank& rank = ranks_[index];
    const Key key = KeyOf(compute);
    const Key output = {compute.chunk + 1, compute.microbatch};
    if (compute.chunk > 0 && !IsLocal(index, compute.chunk - 1)) {
      CONVENE_ASSIGN_OR_RETURN(const bool arrived, Arrived(index, compute));
      if (!arrived) return false;
    }
    if (output.first < chunks_ && !rank.activations.Free(output)) return false;
    if (compute.chunk > 0) CONVENE_RETURN_IF_ERROR(rank.activations.Check(key));
    CONVENE_RETURN_IF_ERROR(rank.saved.Take(key));
    if (output.first < chunks_) CONVENE_RETURN_IF_ERROR(rank.activations.Take(output));
    if (!trains_) EndPass(rank, compute);
    ++done_;
    return true;
  }

  absl::StatusOr<bool> Backward(int index, const Compute& compute) {
    Rank& rank = ranks_[index];
    const Key key = KeyOf(compute);
    if (compute.kind == ComputeKind::kBackwardWeight) {
      CONVENE_RETURN_IF_ERROR(rank.deferred.Check(key));
      rank.deferred.Release(key);
    } else {
      if (compute.chunk == chunks_ - 1) {
        if (!rank.gradients.Free(key)) return false;
        CONVENE_RETURN_IF_ERROR(rank.gradients.Take(key));
      } else if (!IsLocal(index, compute.chunk + 1)) {
        CONVENE_ASSIGN_OR_RETURN(const bool arrived, Arrived(index, compute));
        if (!arrived) return false;
      }
      CONVENE_RETURN_IF_ERROR(rank.gradients.Check(key));
      if (IsLocal(index, compute.chunk - 1)) {
        rank.gradients.Rename(key, {compute.chunk - 1, compute.microbatch});
      }
      if (compute.chunk == 0) rank.gradients.Release(key);
    }
    CONVENE_RETURN_IF_ERROR(rank.saved.Check(key));
    if (compute.chunk > 0) CONVENE_RETURN_IF_ERROR(rank.activations.Check(key));
    if (compute.kind == ComputeKind::kBackwardInput) {
      CONVENE_RETURN_IF_ERROR(rank.deferred.Take(key));
    } else {
      EndPass(rank, compute);
    }
    ++done_;
    return true;
  }

  void EndPass(Rank& rank, const Compute& compute) {
    rank.saved.Release(KeyOf(compute));
    if (compute.chunk > 0) rank.activations.Release(KeyOf(compute));
  }

  absl::Status CheckEnd() const {
    size_t computes = 0;
    for (size_t index = 0; index < ranks_.size(); ++index) {
      const Rank& rank = ranks_[index];
      computes += schedule_.ranks[index].size();
      if (rank.next < rank.instructions.size()) {
        return absl::FailedPreconditionError(absl::StrCat(Place(index), ": deadlock"));
      }
      if (!rank.saved.empty() || !rank.deferred.empty() || !rank.activations.empty() ||
          !rank.gradients.empty()) {
        return absl::FailedPreconditionError(absl::StrCat("rank ", index, " ends with full slots"));
      }
    }
    for (const auto& [ranks, channel] : channels_) {
      if (channel.sent.size() == channel.posted.size()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", ranks.first, " sends ", channel.sent.size(), " messages to rank ",
                       ranks.second, ", which receives ", channel.posted.size()));
    }
    if (done_ == computes) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(done_, " of ", computes, " computes done"));
  }

  // "rank 1, instruction 3 (receive for 2B0)".
  std::string Place(size_t index) const {
    constexpr const char* kNames[] = {"receive for ", "", "send of "};
    const Rank& rank = ranks_[index];
    const Instruction& instruction = rank.instructions[rank.next];
    return absl::StrCat("rank ", index, ", instruction ", rank.next, " (",
                        kNames[static_cast<int>(instruction.kind)], ToString(instruction.compute),
                        ")");
  }

  const Schedule& schedule_;
  const int chunks_;
  bool trains_ = false;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Channel> channels_;  // [sender, receiver]
  size_t done_ = 0;
};

}  // namespace

absl::Status Play(const Schedule& schedule, const std::vector<RankPlan>& plans, SendRule rule,
                  uint64_t seed) {
  return Player(schedule, plans, rule).Run(seed);
}

}  // namespace convene::worker
