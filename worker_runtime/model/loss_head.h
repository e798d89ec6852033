// The end of the model on the last stage: final norm, head, cross-entropy; in chunks of rows, so
// that the full logits are never held (Hsu et al. 2024, Liger Kernel, section 3.2). Where the loss
// is to be differentiated, a chunk's logits turn into their gradients and into the head's and the
// norm's at once, within the forward pass.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/parallel/linear.h"
#include "worker_runtime/parallel/vocabulary.h"

namespace convene::worker {

struct LossHeadShape {
  int rows = 0;  // of a microbatch
  int hidden = 0;
  VocabularySlice vocabulary;
  float norm_epsilon = 0;
  size_t logits_bytes = 0;  // that one chunk may take
};

// The default of LossHeadShape::logits_bytes: on the CPU part of a shared cache, on a GPU enough
// rows to fill its multiprocessors.
constexpr size_t LossLogitsBytes(DeviceKind device) {
  return device == DeviceKind::kCpu ? size_t{64} << 20 : size_t{512} << 20;
}

// Rows of one chunk: as many as `logits_bytes` hold, in chunks of nearly one size that are a
// multiple of 16 rows (but the last). PURE.
int LossChunkRows(int rows, int columns, size_t element_bytes, size_t logits_bytes);

// Not thread-safe. All memory comes from the arena that was planned with it.
template <typename T>
class LossHead {
 public:
  // Weights, and where their gradients go (null when nothing is differentiated).
  struct Weights {
    const T* norm = nullptr;  // (hidden)
    const T* head = nullptr;  // (vocabulary / tp, hidden)
    WeightGradient norm_gradient;
    WeightGradient head_gradient;
  };
  // The tensors of one microbatch, from its forward to its backward pass.
  struct Activations {
    T* sum = nullptr;       // (rows, hidden): the residual stream's end
    float* rms = nullptr;   // (rows)
    T* gradient = nullptr;  // (rows, hidden): of the norm's output
  };

  // Borrows `tp` and the arena.
  LossHead(const LossHeadShape& shape, DeviceKind device, Collective& tp, Arena& arena);
  // Call it once the arena is built.
  void Bind();

  // residual + delta -> loss, added to *loss_sum. `gradient_scale` (one float in the device's
  // memory) null: nothing is differentiated. Errors: the collective's.
  absl::Status Forward(const Weights& weights, const T* residual, const T* delta,
                       const int32_t* targets, const float* gradient_scale,
                       const Activations& activations, double* loss_sum, Stream& stream);

  // gradient (rows, hidden) is overwritten with that of residual + delta.
  void Backward(const Weights& weights, const Activations& activations, T* gradient,
                Stream& stream);

 private:
  absl::Status ForwardChunk(const Weights& weights, int first_row, int rows, const int32_t* targets,
                            const float* gradient_scale, const Activations& activations,
                            double* loss_sum, Stream& stream);

  const LossHeadShape shape_;
  const int chunk_rows_;
  const size_t workspace_bytes_;
  Collective& tp_;
  Arena& arena_;
  const ArenaBlock<T> normalized_memory_, logits_memory_;
  const ArenaBlock<float> maxima_memory_, sums_memory_;
  const ArenaBlock<char> workspace_memory_;

  // Set by Bind.
  T* normalized_ = nullptr;  // (rows, hidden)
  T* logits_ = nullptr;      // (chunk_rows_, vocabulary / tp)
  CrossEntropyBuffers buffers_;
};

}  // namespace convene::worker
