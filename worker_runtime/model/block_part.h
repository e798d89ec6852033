// The two parts of a transformer block, a mixer of tokens and a feed-forward network: what a block
// knows of them. A part stands between a norm and the residual stream.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/router.h"
#include "worker_runtime/parallel/expert_dispatch.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {

// Local sizes of the experts of a block.
struct ExpertShape {
  RouterShape router;
  DispatchShape dispatch;
  int ffn = 0;  // of each expert
  float balance_loss = 0;
  float z_loss = 0;

  bool is_on() const { return router.experts > 0; }
};

// Local sizes of a block for one microbatch. rows = batch * sequence_length.
struct BlockShape {
  int batch = 0;
  int sequence_length = 0;  // tokens of a row on this rank (ContextCut::local_length)
  int residual_rows = 0;    // of the residual stream on this rank (ChunkedRows::own)
  int hidden = 0;
  int heads = 0;     // local
  int kv_heads = 0;  // local
  int head_size = 0;
  int ffn = 0;  // local; with experts the shared ones', 0: none
  ExpertShape experts;
  const Family* family = nullptr;
  float norm_epsilon = 0;
  float score_scale = 0;  // AttentionShape's, as is the next
  float score_cap = 0;
  float branch_scale = 1;  // Multipliers::branches
  int rotary_size = 0;     // elements of a head
  int query_rank = 0;      // of latent attention, as are the next two (ModelConfig)
  int key_rank = 0;
  int value_size = 0;
  bool deterministic = false;
  bool packed = false;  // rows hold several documents: Pass::documents.begin is given

  int rows() const { return batch * sequence_length; }
  int attention_width() const { return heads * head_size; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  // Of latent attention: the width of what the latents of keys and values become.
  int key_value_width() const { return heads * (head_size - rotary_size + value_size); }
  // The width of what the mixer's first product makes, and of what its last one takes.
  int first_width() const {
    if (!family->latent_attention) return qkv_width();
    return (query_rank > 0 ? query_rank : attention_width()) + key_rank + rotary_size;
  }
  int last_width() const {
    return family->latent_attention ? heads * value_size : attention_width();
  }
  bool has_shared_gate() const {
    return experts.is_on() && ffn > 0 && family->names.shared_router != nullptr;
  }
  int gate_up_width() const { return ActivationInputs(family->activation) * ffn; }
  AttentionShape attention() const {
    AttentionShape shape = {batch,     sequence_length, heads, kv_heads,
                            head_size, deterministic,   packed};
    shape.score_scale = score_scale;
    shape.score_cap = score_cap;
    return shape;
  }
};

// The product of one of kLinearTensors.
LinearShape LinearShapeOf(const BlockShape& shape, BlockTensor tensor);

// `sequence_parallel`: see ResidualRows.
// With a dense feed-forward network.
BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, bool sequence_parallel,
                          int micro_batch_size, int sequence_length, bool deterministic,
                          bool packed);

// The same for a layer of the model, whose tokens go to one of `ep_size` ranks.
BlockShape ShapeOfLayer(const BlockShape& shape, const ModelConfig& config, int layer, int tp_size,
                        int ep_size, int ep_rank);
// Room for either block.
BlockShape RoomForBoth(const BlockShape& a, const BlockShape& b);

// The sets in which a block's tensors lie.
enum class MemorySet {
  kSaved,       // from the forward to the backward pass: a set for each slot
  kRecomputed,  // the backward pass makes it again: one set for all blocks of a rank
  // From the input half of a backward pass to the weight half: a set for each deferred slot. The
  // factors of weight products that are recomputed lie here, since the input half makes them in
  // this place. To make them once more in the weight half would cost a forward pass with its
  // collectives where all is recomputed, which is more time than the bubble that halves are there
  // to fill. The price is memory for as many microbatches as the schedule puts off, which are few
  // (RankPlan::deferred).
  kDeferred,
};

// Declares those tensors of a forward pass that lie in one set.
class SetDeclarer {
 public:
  SetDeclarer(MemorySet set, Arena& arena) : set_(set), arena_(arena) {}

  MemorySet set() const { return set_; }

  // `is_factor`: a weight's gradient is a product with it.
  template <typename E>
  void operator()(ArenaBlock<E>& block, bool is_recomputed, bool is_factor, const char* name,
                  int64_t count, ArenaPart part = ArenaPart::kLocal) const {
    constexpr const char* kNames[] = {"activations/", "recomputed/", "deferred/"};
    if (is_recomputed != (set_ != MemorySet::kSaved)) return;
    if (set_ == MemorySet::kDeferred && !is_factor) return;
    block = arena_.Declare<E>(absl::StrCat(kNames[static_cast<int>(set_)], name), count, part);
  }

 private:
  const MemorySet set_;
  Arena& arena_;
};

// Puts the deferred place of a factor, where it has one, in place of the other.
template <typename T>
void TakeDeferred(const ArenaBlock<T>& deferred, ArenaBlock<T>& place) {
  if (deferred.size() > 0) place = deferred;
}

// Keeps a product's gradient for the weight half.
template <typename T>
void KeepGradient(const Pass<T>& pass, const T* gradient, ArenaBlock<T> place) {
  const absl::Span<T> kept = place.span();
  pass.around.device->Copy(gradient, kept.data(), kept.size() * sizeof(T), pass.stream);
}

// Where this pass puts the gradient of a linear layer's weight; nowhere in an input half.
template <typename T>
WeightGradient ProductGradient(const Pass<T>& pass, int tensor) {
  return pass.deferred < 0 ? pass.LaterGradient(tensor) : WeightGradient{};
}

// x is the norm's output and y the part's, both (rows, hidden). Errors of all calls: the
// collective's. Not thread-safe.
template <typename T>
class BlockPart {
 public:
  virtual ~BlockPart() = default;

  // `spare`: elements of what Backward is given under this name.
  virtual ScratchSizes scratch(DeviceKind device, int64_t spare) const = 0;

  // x may be on its way (ChunkedRows), and y's sum over ranks is, when the call returns.
  virtual absl::Status Forward(const Pass<T>& pass, const T* x, T* y) = 0;

  // Whether the backward pass wants x to make some of its tensors again, and the call that does;
  // x may be on its way.
  virtual bool starts_from_input() const = 0;
  virtual absl::Status Again(const Pass<T>& pass, const T* x) = 0;

  // dy and x may be on their way, dx's sum over ranks is. dy stays what it is. `spare`: memory that
  // the call may overwrite.
  virtual absl::Status Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                                absl::Span<T> spare) = 0;
  // Memory of the pass that is free once Backward has run, and how many elements it has.
  virtual absl::Span<T> used_up(const Pass<T>& /*pass*/) const { return {}; }
  virtual int64_t used_up_count() const { return 0; }

  // The weight half.
  virtual void BackwardWeight(const Pass<T>& pass, const T* x) = 0;
};

}  // namespace convene::worker
