// One pipeline stage of the model on one rank: embedding (first stage), blocks, final norm, head
// and loss (last stage).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/block.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/schedule/executor.h"

namespace convene::worker {

// Moves parameters and gradients between ranks beside the stage's arithmetic. Called in the order
// of queueing, by the thread that queues.
class StageObserver {
 public:
  virtual ~StageObserver() = default;
  // Ops that the stage queues from now on may read parameters [0, flat_end) of its flat buffer; no
  // op that it has queued in this run reads one beyond the last call's `flat_end`.
  virtual void ParametersNeeded(int64_t flat_end) = 0;
  // The stage has queued all that it adds to gradients [flat_begin, flat_count) in this run. Errors
  // end the backward pass.
  virtual absl::Status GradientsFinal(int64_t flat_begin) = 0;
};

// The tokens of one step on this data-parallel rank: (microbatches, micro_batch_size,
// sequence_length) each. Borrowed, in the device's memory.
struct StageBatch {
  const int32_t* inputs = nullptr;
  const int32_t* targets = nullptr;  // negative: does not count
  // One float: 1 / counted tokens of the whole global batch. Null: only the loss is wanted, without
  // gradients.
  const float* gradient_scale = nullptr;
  // Microbatches in this run of a schedule. Microbatch 0 goes forward first, the last one backward
  // last.
  int microbatches = 1;
  // Called by Forward of microbatch 0 and by Backward of the last one, and by no other pass: the
  // other passes queue the same ops in every step. Null: there is no observer. Borrowed.
  StageObserver* observer = nullptr;
  // One for each microbatch where Options::packed_documents, else null. The list itself lies in
  // host memory; its pointers are into the device's.
  const Documents* documents = nullptr;
};

// Not thread-safe. All memory comes from the arena that was planned with it.
class Stage : public PipelineStage {
 public:
  struct Options {
    ModelConfig config;
    Layout layout;
    Coordinate coordinate;
    DType dtype = DType::kFloat32;  // of parameters and activations: kFloat32 or kBFloat16
    Recompute recompute = Recompute::kNone;
    bool deterministic = false;
    bool packed_documents = false;
    int micro_batch_size = 1;
    int sequence_length = 1;
    int slots = 1;  // microbatches in flight: ActivationSlots()
  };

  // Declares activations and scratch in `arena`. All references are borrowed and outlive the stage.
  static std::unique_ptr<Stage> Make(const Options& options, const ParameterTable& table,
                                     Collective& tp, Device& device, Arena& arena);

  // Call it once the arena is built. `parameters` (options.dtype) and `gradients` have
  // table.flat_count elements. A run's microbatch 0 overwrites every parameter's gradient, the
  // later ones add to it; the elements between parameters are not touched. The last stage adds the
  // summed loss, in nats, of the batch's counted tokens to *loss_sum.
  virtual void Bind(ConstElements parameters, absl::Span<float> gradients, double* loss_sum) = 0;

  // Call it before each schedule run.
  virtual void SetBatch(const StageBatch& batch) = 0;
};

}  // namespace convene::worker
