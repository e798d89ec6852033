// One transformer block, this rank's tensor-parallel slice: forward, and backward written out.
//
//   x ─ norm1 ─ qkv ─ rope ─ attention ─ out ─(+x)─ middle ─ norm2 ─ gate_up ─ swiglu ─ down
//   ─(+middle)─ y
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker {

// Local sizes of a block for one microbatch. rows = batch * sequence_length.
struct BlockShape {
  int batch = 0;
  int sequence_length = 0;
  int hidden = 0;
  int heads = 0;     // local
  int kv_heads = 0;  // local
  int head_size = 0;
  int ffn = 0;  // local
  float norm_epsilon = 0;

  int rows() const { return batch * sequence_length; }
  int attention_width() const { return heads * head_size; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  AttentionShape attention() const { return {batch, sequence_length, heads, kv_heads, head_size}; }
};

BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, int micro_batch_size,
                          int sequence_length);

// What the forward pass leaves for the backward pass. Each points at rows * width floats.
struct BlockActivations {
  float* input = nullptr;        // hidden; filled before the forward pass
  float* norm1 = nullptr;        // hidden
  float* norm1_rms = nullptr;    // 1
  float* qkv = nullptr;          // qkv_width, after rope
  float* attention = nullptr;    // attention_width
  float* log_sum_exp = nullptr;  // heads
  float* middle = nullptr;       // hidden
  float* norm2 = nullptr;        // hidden
  float* norm2_rms = nullptr;    // 1
  float* gate_up = nullptr;      // 2 ffn
  float* product = nullptr;      // ffn
};

// Scratch that one backward pass of one block may overwrite; shared by all blocks.
struct BlockScratch {
  float* hidden = nullptr;               // rows * hidden
  float* wide = nullptr;                 // rows * max(qkv_width, 2 ffn)
  float* narrow = nullptr;               // rows * max(attention_width, ffn)
  float* attention_workspace = nullptr;  // AttentionWorkspace(shape)
};

// Constant tables and the communicator of a block.
struct BlockContext {
  const float* rope_cosines = nullptr;  // (sequence_length, head_size / 2)
  const float* rope_sines = nullptr;
  Collective* tp = nullptr;
};

// y: (rows, hidden): the next block's input. `parameters` is the rank's flat buffer. Errors: the
// collective's.
absl::Status BlockForward(const BlockShape& shape, const BlockContext& context,
                          const BlockParameters& offsets, const float* parameters,
                          const BlockActivations& activations, float* y, float* attention_workspace,
                          Stream& stream);

// gradient: (rows, hidden), of y on entry, of the block's input on return. `gradients` is laid out
// as `parameters`, added to.
absl::Status BlockBackward(const BlockShape& shape, const BlockContext& context,
                           const BlockParameters& offsets, const float* parameters,
                           float* gradients, const BlockActivations& activations,
                           const BlockScratch& scratch, float* gradient, Stream& stream);

}  // namespace convene::worker
