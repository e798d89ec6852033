// Runs one rank's part of a pipeline schedule: the edge beside the pure plans of schedule/.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/schedule/lower.h"

namespace convene::worker {

class GraphedOps;

// One pass over one microbatch, and the slots (schedule/lower.h) of its data; -1 where it has none.
struct StagePass {
  Compute compute;
  int saved = -1;     // of the tensors between forward and backward
  int deferred = -1;  // of the tensors between the two halves; -1 in a pass that is no half
  int head = -1;      // of those that the last chunk's forward leaves for its input gradient
  int input = -1;     // activation: this chunk's input; -1 in the first chunk
  int output = -1;    // activation: the next chunk's input; -1 in the last chunk
  int gradient = -1;  // of this chunk's output on entry, of its input on return
  // The chunk's first pass of a step that goes forward, or that makes input gradients.
  bool is_first = false;
  // The chunk's first pass of a step that makes gradients which a schedule with halves leaves to
  // the weight half.
  bool is_first_weight = false;
  // The chunk's last pass of a step. It adds to the parameters' gradients, and no later pass does:
  // each input half has its weight half behind it.
  bool is_last = false;
  // Borrowed. Through it go the ops of each unit, one unit a graph (graphed_ops.h); null: they are
  // queued as they are.
  GraphedOps* graphs = nullptr;
};

// The chunks of the model on one pipeline rank.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  virtual absl::Status Run(const StagePass& pass, Stream& stream) = 0;
  virtual Elements activation(int slot) = 0;
  virtual Elements gradient(int slot) = 0;
};

class PipelineExecutor {
 public:
  // Borrows both references. The stage has as many slots as the plan.
  PipelineExecutor(PipelineStage& stage, Collective& pp, const RankPlan& plan);

  // Returns once every pass is queued and every message is over. Errors: the stage's and the
  // collective's.
  absl::Status Run(Stream& stream);

 private:
  struct Step {
    InstructionKind kind;
    StagePass pass;
    int peer;
  };

  absl::Status Do(const Step& step, Stream& stream);
  absl::Status RunPass(const StagePass& pass, Stream& stream);
  absl::Status WaitFor(PendingMessage& pending, Stream& stream);

  PipelineStage& stage_;
  Collective& pp_;
  std::vector<Step> steps_;
  // By slot: the message that may still read it or write to it. Id 0 = none.
  std::vector<PendingMessage> activations_;
  std::vector<PendingMessage> gradients_;
};

}  // namespace convene::worker
