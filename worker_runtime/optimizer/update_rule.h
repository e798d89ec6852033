// How a step changes weights. Another optimizer is a class behind this interface in a file beside
// this one, and the op of its arithmetic (ops/): which rank keeps which part of its state, in whose
// memory, checkpoints, offload and the memory plan are the caller's affair
// (shard/sharded_optimizer.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

// Without a state of its own; any thread.
class UpdateRule {
 public:
  // The constants of one step, as the rule's op reads them.
  struct alignas(16) Factors {
    std::byte bytes[64];
  };

  // Elements of a shard, which may begin and end within a tensor: arrays of `count`, a multiple of
  // kFlagBlock, and one each of factors and control, in memory of the stream's device.
  struct Piece {
    int64_t count = 0;
    const Factors* factors = nullptr;
    const StepControl* control = nullptr;
    const uint8_t* flags = nullptr;  // (count / kFlagBlock), see ParameterFlag
    float* gradients = nullptr;      // the rule may overwrite them
    float* master = nullptr;         // the fp32 weights
    // They become the masters, rounded. Of fp32 they are the masters.
    Elements weights;
    // One array for each of states(). The pointers themselves are gone when Update returns; all
    // other memory stays until the stream has done the update.
    absl::Span<float* const> states;
  };

  virtual ~UpdateRule() = default;

  // As in --optimizer and in checkpoints.
  virtual const char* name() const = 0;

  // The fp32 numbers that the rule keeps for each element, by the names that they have in
  // checkpoints ("first_moment"). They start as zeros.
  virtual absl::Span<const char* const> states() const = 0;
  virtual Factors FactorsOf(const UpdateParameters& parameters) const = 0;
  // Updates the piece in place, unless control skips the step.
  virtual void Update(const Piece& piece, Stream& stream) const = 0;
};

// ops/adamw.h.
const UpdateRule& AdamWRule();
// ops/sgd.h: torch.optim.SGD, whose weight decay is part of the gradient.
const UpdateRule& SgdRule();

}  // namespace convene::worker
