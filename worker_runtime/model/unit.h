// One link of the model's chain (embedding, transformer block, head) on one rank: its forward and
// backward pass over one microbatch. A stage runs a list of units; which weights a rank holds, and
// when, is the unit store's affair.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/parallel/chunked_rows.h"
#include "worker_runtime/parallel/context_attention.h"
#include "worker_runtime/parallel/key_value_cache.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// Scratch that every pass of every unit of a rank may overwrite. Elements; bytes.
struct ScratchSizes {
  int64_t wide = 0;
  int64_t narrow = 0;
  int64_t sent = 0;     // where a rank has experts: tokens on their way to them
  int64_t arrived = 0;  // the same of those that came
  int64_t floats = 0;   // the same of numbers beside tokens
  size_t workspace_bytes = 0;

  void Include(const ScratchSizes& other) {
    wide = std::max(wide, other.wide);
    narrow = std::max(narrow, other.narrow);
    sent = std::max(sent, other.sent);
    arrived = std::max(arrived, other.arrived);
    floats = std::max(floats, other.floats);
    workspace_bytes = std::max(workspace_bytes, other.workspace_bytes);
  }
};

// How even the experts' load was, summed over the routings of a rank in a step.
struct ExpertTotals {
  double routings;
  double highest_load;  // ExpertLoad's
  double entropy;
  double chunked;  // routings whose tokens had no room at once
};

template <typename T>
struct ExpertSurroundings;

// Memory, tables and communicators that all units of a rank share. Borrowed.
template <typename T>
struct UnitSurroundings {
  Device* device = nullptr;
  ChunkedRows* rows = nullptr;
  Collective* cp = nullptr;
  ContextAttention<T>* attention = nullptr;
  T* hidden = nullptr;  // scratch: (rows, hidden)
  T* branch = nullptr;  // the same, where something comes behind the parts
  T* wide = nullptr;    // scratch, as ScratchSizes say
  T* narrow = nullptr;
  Workspace workspace;
  const ExpertSurroundings<T>* experts = nullptr;  // null: no block has experts
  // Null in training. Else runs of a pass's tokens go on with sequences of the cache, and the head
  // makes logits in place of a loss.
  const KeyValueCache* cache = nullptr;
};

// The residual stream between two units is residual + delta. With delta null it is the residual
// alone.
template <typename T>
struct Flow {
  const T* residual = nullptr;  // (ChunkedRows::own, hidden)
  // Still to be added: (rows, hidden), of which only the own rows count. It may lie in the scratch
  // `hidden`, and be on its way there (ChunkedRows::Finish).
  const T* delta = nullptr;
};

// One pass over one microbatch. Borrowed, in the device's memory.
template <typename T>
struct Pass {
  const UnitSurroundings<T>& around;
  UnitStore& store;
  int unit;               // the unit's number in the store
  int slot;               // of the microbatch's activations
  int deferred;           // slot between the halves of a backward pass; -1: no half
  int head;               // slot of the loss's gradient, in the head
  bool is_first;          // as in StagePass (pipeline/executor.h)
  bool is_first_weight;   // the same
  T* input;               // (own rows, hidden): where the unit's input lies; null for the embedding
  const int32_t* inputs;  // (rows)
  const int32_t* targets;        // (rows); negative: does not count
  const int64_t* token_numbers;  // (rows): StageBatch's; null: nothing is dropped
  // One float: 1 / counted tokens of the whole global batch. Null: only the loss is wanted.
  const float* gradient_scale;
  double* loss_sum;          // the head adds the summed loss, in nats, of the counted tokens
  const double* references;  // (samples): of pairs of answers PreferenceLoss's; null: not known yet
  double* answer_losses;     // (samples, 2), zeros: the head fills in those of pairs of answers
  double* rewards;           // PreferenceLoss adds to them
  Documents documents;
  Stream& stream;
  absl::Span<const int> places;           // of the unit's tensors by role (PlacesOf)
  absl::Span<const void* const> weights;  // UnitStore::Acquire's; none in a weight half

  // Null: the unit has no tensor of this role.
  const T* Weight(int role) const {
    return Has(role) ? static_cast<const T*>(weights[places[role]]) : nullptr;
  }
  // Of a tensor whose gradient comes with the forward pass or with the input's gradient. None where
  // the unit has no such tensor.
  WeightGradient Gradient(int role) const {
    return Has(role) ? store.Gradient(unit, places[role], is_first) : WeightGradient{};
  }
  // Of a tensor whose gradient may wait for the weight half.
  WeightGradient LaterGradient(int role) const {
    return Has(role) ? store.Gradient(unit, places[role], is_first_weight) : WeightGradient{};
  }
  // -1: no role.
  bool Has(int role) const {
    return role >= 0 && static_cast<size_t>(role) < places.size() && places[role] >= 0;
  }
};

// Not thread-safe. A unit's constructor declares its activations, one set a slot, in an arena; all
// calls but scratch() come once that arena is built.
template <typename T>
class Unit {
 public:
  virtual ~Unit() = default;

  virtual ScratchSizes scratch(DeviceKind /*device*/) const { return {}; }

  // `flow` is the unit's input, and becomes its output. Without delta, flow.residual is
  // Pass::input, already filled in. `target` is the place for the unit's own output. A block fills
  // its own rows of `target`, (rows, hidden), with its delta (`target` may be the scratch
  // `hidden`). The embedding fills `target`, (own rows, hidden), with the residual. Errors: the
  // collective's.
  virtual absl::Status Forward(const Pass<T>& pass, T* target, Flow<T>& flow) = 0;

  // gradient: (rows, hidden), of which only the own rows count: of the unit's output on entry, of
  // its input on return. The head overwrites it. Where the pass is an input half, the unit may
  // leave gradients of its weights to BackwardWeight. Errors: the collective's.
  virtual absl::Status Backward(const Pass<T>& pass, T* gradient) = 0;

  // The weight half: what Backward left, from the memory of pass.slot and pass.deferred alone. It
  // needs no weights and no other rank.
  virtual void BackwardWeight(const Pass<T>& /*pass*/) {}
};

}  // namespace convene::worker
