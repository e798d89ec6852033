// One pipeline stage of the model on one rank: embedding (first stage), blocks, final norm, head
// and loss (last stage).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/documents.h"
#include "worker_runtime/schedule/executor.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// The tokens of one step on this data-parallel rank: (microbatches, micro_batch_size,
// sequence_length) each. Borrowed, in the device's memory.
struct StageBatch {
  const int32_t* inputs = nullptr;
  const int32_t* targets = nullptr;  // negative: does not count
  // One float: 1 / counted tokens of the whole global batch. Null: only the loss is wanted, without
  // gradients.
  const float* gradient_scale = nullptr;
  // Microbatches in this run of a schedule: the last one goes backward last.
  int microbatches = 1;
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
    bool sequence_parallel = false;  // ResidualRows
    int micro_batch_size = 1;
    int sequence_length = 1;
    int slots = 1;  // microbatches in flight: ActivationSlots()
  };

  // Declares activations and scratch in `arena`. `units`: UnitsOf's, which `store` calls by the
  // same places. All references are borrowed and outlive the stage, but for `units`.
  static std::unique_ptr<Stage> Make(const Options& options, const std::vector<UnitSpec>& units,
                                     UnitStore& store, Collective& tp, Device& device,
                                     Arena& arena);

  // Call it once the arena is built. The last stage adds the summed loss, in nats, of the batch's
  // counted tokens to *loss_sum.
  virtual void Bind(double* loss_sum) = 0;

  // Call it before each schedule run.
  virtual void SetBatch(const StageBatch& batch) = 0;
};

}  // namespace convene::worker
