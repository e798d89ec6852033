// Where the four linear layers of a block have their operands as 8-bit floats
// (parallel/float8_linear.h). Activations stay saved in T: a backward pass rounds them again, by
// the scales that the forward pass left, so it finds the same codes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/parallel/float8_linear.h"

namespace convene::worker {

struct BlockShape;

inline constexpr BlockTensor kLinearTensors[] = {kQkv, kAttentionOut, kGateUp, kDown};

// A number of each tensor of a block, by BlockTensor; those of the norms mean nothing.
struct Float8Scales {
  ArenaBlock<float> largest;
  ArenaBlock<float> inverse;
};
Float8Scales DeclareFloat8Scales(const char* name, Arena& arena);

// The codes of a block's weights, by BlockTensor, and turned round.
struct Float8Weights {
  ArenaBlock<uint8_t> codes[kDown + 1];
  ArenaBlock<uint8_t> turned[kDown + 1];
  Float8Scales scales;
};
Float8Weights DeclareFloat8Weights(const BlockShape& shape, Arena& arena);

// Codes that each product of a rank's blocks overwrites.
struct Float8Scratch {
  ArenaBlock<uint8_t> input;     // codes, or turned
  ArenaBlock<uint8_t> gradient;  // codes
  ArenaBlock<uint8_t> gradient_turned;
  Float8Scales gradients;  // of backward passes that are no halves
};
Float8Scratch DeclareFloat8Scratch(const BlockShape& shape, Arena& arena);

// One block's. By default its products take T.
struct BlockFloat8 {
  bool is_on = false;
  // The weights' codes are the block's own: the first forward pass of a step, or of a validation,
  // makes them for all later passes. Else all blocks share the place, and each pass makes them.
  bool keeps_weights = false;
  Float8Weights weights;
  Float8Scratch scratch;
  std::vector<Float8Scales> inputs;     // by slot: from the forward pass to the weights' gradients
  std::vector<Float8Scales> gradients;  // by deferred slot: from one half to the other

  // The linear layer of a tensor in this pass; off where this is.
  template <typename T>
  Float8Layer Layer(const Pass<T>& pass, BlockTensor tensor) const;
};

// Makes the codes of the block's weights, with the scales of the whole tensors over tp. Errors: the
// collective's.
template <typename T>
absl::Status RoundWeights(const BlockShape& shape, const BlockFloat8& float8, const Pass<T>& pass);

}  // namespace convene::worker
