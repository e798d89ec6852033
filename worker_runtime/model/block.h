// One transformer block, this rank's tensor-parallel slice: forward, and backward written out.
//
//   input ─ norm1 ─ qkv ─ rope ─ attention ─ out ─(+input)─ middle ─ norm2 ─ gate_up ─ swiglu
//   ─ down ─ delta        the next block's input is middle + delta, added within its first norm
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/parallel/linear.h"

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
  bool deterministic = false;
  bool packed = false;  // rows hold several documents: context.documents.begin is given

  int rows() const { return batch * sequence_length; }
  int attention_width() const { return heads * head_size; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  AttentionShape attention() const {
    return {batch, sequence_length, heads, kv_heads, head_size, deterministic, packed};
  }
};

BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, int micro_batch_size,
                          int sequence_length, bool deterministic, bool packed);

// Tensors that the forward pass leaves for the backward pass: pointers to rows * width elements of
// T, or floats. All blocks share the tensors that are recomputed.
template <typename T>
struct BlockActivations {
  T* input = nullptr;            // hidden
  T* norm1 = nullptr;            // hidden
  float* norm1_rms = nullptr;    // 1
  T* qkv = nullptr;              // qkv_width, after rope
  T* attention = nullptr;        // attention_width
  float* log_sum_exp = nullptr;  // heads
  T* middle = nullptr;           // hidden
  T* norm2 = nullptr;            // hidden
  float* norm2_rms = nullptr;    // 1
  T* gate_up = nullptr;          // 2 ffn
  T* product = nullptr;          // ffn
};

// Scratch that a pass of one block may overwrite; shared by all blocks.
template <typename T>
struct BlockScratch {
  T* hidden = nullptr;  // rows * hidden
  T* wide = nullptr;    // rows * max(qkv_width, 2 ffn)
  T* narrow = nullptr;  // rows * max(attention_width, ffn)
  Workspace workspace;  // BlockWorkspaceBytes
};

// The scratch of attention and both norms.
template <typename T>
size_t BlockWorkspaceBytes(const BlockShape& shape, DeviceKind device);

// Constant tables and the communicator of a block, and where the microbatch's documents lie.
struct BlockContext {
  const float* rope_cosines = nullptr;  // (sequence_length, head_size / 2)
  const float* rope_sines = nullptr;
  Collective* tp = nullptr;
  SideStream* side = nullptr;  // null where tp is one rank
  Recompute recompute = Recompute::kNone;
  Documents documents;
};

// A block's input: a residual stream, and a `delta` still to be added to it. With delta null,
// residual is activations.input, already filled.
template <typename T>
struct BlockInput {
  const T* residual = nullptr;  // (rows, hidden)
  const T* delta = nullptr;     // (rows, hidden); may be scratch.hidden
};

// Leaves the residual stream in activations.middle, and in `delta` (rows, hidden; it may be
// scratch.hidden) the numbers still to be added to it. `parameters` is the rank's flat buffer.
// Errors: the collective's.
template <typename T>
absl::Status BlockForward(const BlockShape& shape, const BlockContext& context,
                          const BlockParameters& offsets, const T* parameters,
                          const BlockInput<T>& input, const BlockActivations<T>& activations,
                          const BlockScratch<T>& scratch, T* delta, Stream& stream);

// gradient: (rows, hidden), of middle + delta on entry, of the block's input on return. `gradients`
// is laid out as `parameters`.
template <typename T>
absl::Status BlockBackward(const BlockShape& shape, const BlockContext& context,
                           const BlockParameters& offsets, const T* parameters,
                           const WeightGradient& gradients, const BlockActivations<T>& activations,
                           const BlockScratch<T>& scratch, T* gradient, Stream& stream);

}  // namespace convene::worker
