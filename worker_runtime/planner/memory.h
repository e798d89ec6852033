// PURE. The memory that one GPU needs, by closed formulas. They follow the arena that the trainer
// plans (PlanMemory, trainer/engine_parts.h), and trainer/planned_memory_test.cc compares the two.
#pragma once

#include "worker_runtime/planner/counts.h"
#include "worker_runtime/planner/job.h"

namespace convene::worker {

// Bytes of one GPU. The libraries and the CUDA context come on top (UsableBytes, search.h).
struct MemoryParts {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;    // states and master weights
  double activations = 0;  // from the forward to the backward pass, of all micro batches under way
  double scratch = 0;      // of one block at a time, and what the backward pass computes again
  double logits = 0;       // the head's
  // Gathered units and their gradients on the way, messages of pipeline and context ranks.
  double communication = 0;
  double nccl = 0;  // besides: NCCL's own buffers, an estimate (NcclBufferBytes); 0 on CPUs

  double Total() const {
    return parameters + gradients + optimizer + activations + scratch + logits + communication;
  }
};

// Micro batches of a step on one data-parallel rank, and the samples of each (EvenCut).
struct MicroBatches {
  int64_t count = 1;
  int size = 1;
};
MicroBatches MicroBatchesOf(const PlanJob& job, const Strategy& strategy);

// Slots of saved activations of pipeline rank `stage`: the most (chunk, micro batch) pairs that
// wait for their backward pass (schedule/generators.h).
int64_t SavedSlots(const Strategy& strategy, int stage, int64_t microbatches);
// Of those whose backward pass has ended in its input half alone: 0 where no pass has halves.
int64_t DeferredSlots(const Strategy& strategy, int stage, int64_t microbatches);

// Bytes that one block of a rank keeps of one micro batch.
double SavedBytes(const PlanJob& job, const Strategy& strategy, bool has_experts);

// Of one pipeline rank, without `nccl`, which depends on the cluster. REQUIRES: the layout is legal
// (Legal, search.h).
MemoryParts MemoryOfStage(const PlanJob& job, const Strategy& strategy, int stage,
                          ModelCounts& counts);
// Of the pipeline rank that needs the most, likewise.
MemoryParts LargestMemory(const PlanJob& job, const Strategy& strategy, ModelCounts& counts);

// Parameters, gradients, optimizer state in bytes of the whole model on one GPU, without
// activations.
double UnshardedBytes(const PlanJob& job);

}  // namespace convene::worker
