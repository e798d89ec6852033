// PURE. A schedule becomes what each rank does: compute, messages, and where their data lie.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

enum class InstructionKind {
  kReceive,  // posts the receive of what `compute` reads, and goes on; `compute` waits for it
  kCompute,
  kSend,  // starts to send what `compute` wrote, and goes on
};

struct Instruction {
  InstructionKind kind;
  // A forward reads and writes activations, a backward (or its input half) gradients. A weight half
  // has no messages.
  Compute compute;
  int peer = -1;  // pipeline rank of a message's other end
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// Memory of one kind, in `count` pieces, each large enough for any chunk of the rank.
struct Slots {
  int count = 0;
  std::map<std::pair<int, int>, int> of;  // (chunk, microbatch) -> its slot, from 0
};

// A boundary between two chunks needs messages only where they lie on two ranks. On one rank the
// first chunk writes where the second one reads.
struct RankPlan {
  std::vector<Instruction> instructions;
  // The tensors that a forward saves for the backward pass: until kBackward or kBackwardWeight has
  // run (in a schedule without them for the forward alone). The count is the least possible.
  Slots saved;
  // The tensors that kBackwardInput saves for kBackwardWeight. The count is the least possible.
  Slots deferred;
  // The tensors that the last chunk's forward saves for kBackward or kBackwardInput alone: the
  // loss's gradient. On other ranks there are none. The count is the least possible.
  Slots heads;
  // The input of each (chunk, microbatch), except of chunk 0: on its own rank, where it lives as
  // long as `saved`, and on the rank of the chunk before, whose forward writes it there.
  Slots activations;
  // The gradient of each (chunk, microbatch): of its output, which its backward pass turns into the
  // gradient of its input.
  Slots gradients;
  // A slot that is sent stays as it is at least until the next compute has been queued, so that
  // the message can travel meanwhile: `activations` and `gradients` may have a slot or two more
  // than the least number.
};

// [rank]. Each receive is posted up to `receives_ahead` computes before the one that reads it, so
// that the message travels beside these; before those alone that Simulate does not start until the
// compute that makes the message has started. (An earlier post gains no time. And CUDA may hold up
// a new kernel until all that runs is done: two ranks could then wait for each other.) It is posted
// earlier where messages between the same two ranks would else arrive in another order.
//
// An executor needs one queue for each ordered pair of ranks: messages match in the order of their
// instructions. A receive begins after the computes that stand before it, as they may still read
// its slot. A compute or a receive that writes to a slot waits until the send of what lay there is
// done. There is no deadlock even if a send is done only after its receive has been posted (NCCL):
// a slot is written anew only by what Simulate starts later than that post, so everything waits for
// what is earlier in Simulate's order alone.
//
// Errors: Simulate's. REQUIRES: receives_ahead >= 0.
absl::StatusOr<std::vector<RankPlan>> Lower(const Schedule& schedule, int receives_ahead = 1);

}  // namespace convene::worker
