// The chunks of the model on one pipeline rank: embedding (first chunk), blocks, final norm, head
// and loss (last chunk).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/parallel/context_cut.h"
#include "worker_runtime/parallel/key_value_cache.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// The tokens of one step on this rank: (microbatches, micro_batch_size, ContextCut::local_length)
// each. Borrowed, in the device's memory.
struct StageBatch {
  const int32_t* inputs = nullptr;
  const int32_t* targets = nullptr;  // negative: does not count
  // A number for each token, which no other token of the run has: of the adapters' dropout. Null:
  // nothing is dropped.
  const int64_t* token_numbers = nullptr;
  // One float: 1 / counted tokens of the whole global batch. Null: only the loss is wanted, without
  // gradients, and nothing is dropped.
  const float* gradient_scale = nullptr;
  // One for each microbatch where Options::packed_documents, else null. The list itself lies in
  // host memory; its pointers are into the device's.
  const Documents* documents = nullptr;
  // Of pairs of answers (Options::preference_beta), else null. references: (microbatches,
  // micro_batch_size), PreferenceLoss's; null: the answers' losses alone are wanted, and no
  // gradients. answer_losses: (microbatches, micro_batch_size, 2), zeros: the last chunk fills them
  // in, the same on all tp and cp ranks. rewards: PreferenceLoss adds to them, on the first cp
  // rank.
  const double* references = nullptr;
  double* answer_losses = nullptr;
  double* rewards = nullptr;
};

// [chunk]: the units of a chunk of the model.
using UnitsByChunk = std::map<int, std::vector<UnitSpec>>;

// The choice of the products in blocks that take 8-bit floats (parallel/float8_linear.h).
struct Float8Products {
  bool is_on = false;
  int bf16_end_blocks = 0;    // so many blocks at each end of the model keep products of the dtype
  bool keeps_weights = true;  // BlockFloat8
};

// Not thread-safe. All memory comes from the arena that was planned with it.
class Stage : public PipelineStage {
 public:
  struct Options {
    ModelConfig config;
    DType dtype = DType::kFloat32;  // of parameters and activations: kFloat32 or kBFloat16
    Float8Products float8;
    Recompute recompute = Recompute::kNone;
    bool deterministic = false;
    bool packed_documents = false;
    bool sequence_parallel = false;  // ResidualRows
    int row_chunks = 1;              // ChunkedRows
    uint64_t seed = 0;               // of the adapters' dropout
    size_t logits_bytes = 0;         // LossHeadShape; 0: LossLogitsBytes
    // LossHeadShape's. REQUIRES, above 0: even rows; with cp ranks the zig-zag cut.
    double preference_beta = 0;
    bool overlaps = true;  // collectives inside a block run beside its arithmetic
    int micro_batch_size = 1;
    int sequence_length = 1;  // of a whole row
    ContextMethod context_method = ContextMethod::kRing;
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
    // How many of each the stage keeps, as its plans say (schedule/lower.h).
    int saved_slots = 1;
    int deferred_slots = 0;
    int head_slots = 1;
    int activation_slots = 0;
    int gradient_slots = 1;
    // Borrowed. Not null: the stage generates. Its tokens go on with the cache's sequences, its
    // head makes logits, and it has no backward pass. REQUIRES then: one cp rank, whole documents,
    // rows that are not split, no 8-bit products.
    const KeyValueCache* cache = nullptr;
    int cached_logits = 1;  // tokens of a pass that want logits, at most
    // Borrowed until Make returns; null: the stage has a workspace of its own. Stages of one arena,
    // of which one runs at a time, share the block: a stage that needs a larger one puts it there.
    ArenaBlock<char>* workspace = nullptr;
  };

  struct Groups {
    Collective& tp;
    Collective& cp;
    Collective& ep;
  };

  // Declares activations and scratch in `arena`, and what the host tells the device of a pass in
  // `staging`: host memory that the device copies asynchronously. `store` numbers the units in the
  // order of `chunks`. All references are borrowed and outlive the stage, but for `chunks`.
  static std::unique_ptr<Stage> Make(const Options& options, const UnitsByChunk& chunks,
                                     UnitStore& store, const Groups& groups, Device& device,
                                     Arena& arena, Arena& staging);

  // Call it once both arenas are built. losses, in the device's memory: the last chunk adds the
  // summed loss, in nats, of the batch's counted tokens to losses[0]; blocks with experts add
  // RouterPenalty's to losses[1] and losses[2]. `exact`, (3, kExactDigits) in the device's memory:
  // each unit's part of each loss moves there, so that no order of the units and microbatches
  // changes the sums (ops/binned_sum.h). Null: they stay in `losses`.
  virtual void Bind(double* losses, double* exact) = 0;

  // Of the training passes queued since the last call.
  virtual ExpertTotals TakeExpertTotals() = 0;

  // Call it before each schedule run.
  virtual void SetBatch(const StageBatch& batch) = 0;

  // LossHead::logits() of the last pass over a cache, (cached_logits, vocabulary slice) at most.
  // REQUIRES: the stage has the head.
  virtual Elements logits() = 0;
};

}  // namespace convene::worker
