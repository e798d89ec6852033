// The last unit: final norm, head, cross-entropy. It works in chunks of rows, so that the full
// logits are never held (Hsu et al. 2024, Liger Kernel, section 3.2). Where the loss is to be
// differentiated, a chunk's logits turn into their gradients and into the head's and the norm's at
// once, within the forward pass. The backward pass goes through the norm alone, whose gradients
// come in the input half. In a pass over a cache of keys and values the head makes the logits
// behind the last token of each row instead.
//
// Of pairs of answers the chunks come twice, where gradients are wanted: first for the sum of each
// answer's cross-entropies, then, with these known, for the gradients.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/parallel/norm.h"
#include "worker_runtime/parallel/vocabulary.h"

namespace convene::worker {

struct LossHeadShape {
  int rows = 0;           // of a microbatch
  int residual_rows = 0;  // of the residual stream on this rank (ChunkedRows::own)
  int hidden = 0;
  VocabularySlice vocabulary;
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 0;
  float logit_cap = 0;      // ModelConfig's; with one a chunk has its logits twice
  float logit_divisor = 1;  // Multipliers::logits
  size_t logits_bytes = 0;  // that one chunk may take
  int cached_logits = 0;    // tokens of a pass over a cache that want logits, at most; 0: no cache
  // Above 0: each sample of a microbatch is a pair of answers, the chosen one in the first half of
  // its rows and the rejected one in the second, and the loss is PreferenceLoss of these.
  double preference_beta = 0;
  int samples = 0;  // of a microbatch
};

// The least of LossHeadShape::logits_bytes that serves the device: on the CPU part of a shared
// cache, on a GPU enough rows to fill its multiprocessors.
constexpr size_t LossLogitsBytes(DeviceKind device) {
  return device == DeviceKind::kCpu ? size_t{64} << 20 : size_t{512} << 20;
}

// Rows of one chunk: as many as `logits_bytes` hold, in chunks of nearly one size that are a
// multiple of 16 rows (but the last). PURE.
int LossChunkRows(int rows, int columns, size_t element_bytes, size_t logits_bytes);

template <typename T>
class LossHead final : public Unit<T> {
 public:
  // `slots`: as many as Pass::head names. Borrows the arena.
  LossHead(const LossHeadShape& shape, int slots, DeviceKind device, Arena& arena);

  // The flow ends here, in Pass::input. With Pass::gradient_scale the gradients of all of it are
  // made too. Over a cache: logits().
  absl::Status Forward(const Pass<T>& pass, T* target, Flow<T>& flow) override;
  absl::Status Backward(const Pass<T>& pass, T* gradient) override;

  // (tokens that want them, vocabulary.size()), in the device's memory, until the next pass: this
  // rank's, in the order of the cache's runs and of their tokens.
  T* logits() const { return At(logits_memory_); }

 private:
  // The tensors of one microbatch, from its forward to its backward pass.
  struct Memory {
    ArenaBlock<float> norm_statistics;  // (residual_rows, NormStatistics)
    ArenaBlock<T> gradient;             // (rows, hidden): of the norm's output
  };

  // The sum of rows' losses, and gradients where there is a scale.
  struct Wanted {
    const float* gradient_scale = nullptr;
    double* loss_sum = nullptr;
    WeightGradient* head_gradient = nullptr;  // adds from the second chunk on
  };

  // (rows, hidden): what the head takes, and its gradient, in place of (rows, vocabulary) logits.
  void DivideRows(T* x, Stream& stream) const;
  void ForwardCached(const Pass<T>& pass) const;
  absl::Status ForwardPairs(const Pass<T>& pass, WeightGradient* head_gradient);
  absl::Status ForwardRows(const Pass<T>& pass, int first_row, int rows, const Wanted& wanted);
  absl::Status ForwardChunk(const Pass<T>& pass, int first_row, int rows, const Wanted& wanted);
  bool has_pairs() const { return shape_.preference_beta > 0; }
  CrossEntropyBuffers Buffers() const;
  Workspace workspace() const { return {At(workspace_memory_), workspace_bytes_}; }

  Norm<T> NormOf(const Memory& memory, const Pass<T>& pass) const;

  const LossHeadShape shape_;
  const int chunk_rows_;
  const size_t workspace_bytes_;
  const ArenaBlock<T> normalized_memory_, logits_memory_;
  const ArenaBlock<T> last_memory_;    // (cached_logits, hidden): logits' input
  const ArenaBlock<T> capped_memory_;  // the logits behind the cap, when they become their gradient
  const ArenaBlock<float> maxima_memory_, sums_memory_;
  const ArenaBlock<char> workspace_memory_;
  const ArenaBlock<float> pair_weights_;    // (samples, 2): PreferenceLoss's
  const ArenaBlock<double> unwanted_loss_;  // what nobody asks for
  std::vector<Memory> slots_;
};

}  // namespace convene::worker
