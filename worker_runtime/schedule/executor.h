// Runs one rank's pipeline schedule: the edge beside the pure lists of actions.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/schedule/schedule.h"

namespace convene::worker {

// A stage as its schedule sees it. Microbatches i and i + slots share their activation buffers, i
// and i + 2 their gradient buffer.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  virtual absl::Status Forward(int microbatch, Stream& stream) = 0;
  // Turns gradient(microbatch) from the output's gradient into the input's. On the last stage it
  // starts from the loss.
  virtual absl::Status Backward(int microbatch, Stream& stream) = 0;
  virtual Elements input(int microbatch) = 0;
  virtual Elements output(int microbatch) = 0;
  virtual Elements gradient(int microbatch) = 0;
};

class PipelineExecutor {
 public:
  // `slots`: how many microbatches' activations the stage keeps (ActivationSlots). Borrows both
  // references.
  PipelineExecutor(PipelineStage& stage, Collective& pp, int slots);

  // Returns once every action is done and every send has left its buffer. Errors: the stage's and
  // the collective's.
  absl::Status Run(const std::vector<Action>& actions, Stream& stream);

 private:
  absl::Status Do(const Action& action, Stream& stream);
  absl::Status Send(ConstElements data, int peer, PendingSend& pending, Stream& stream);
  absl::Status WaitFor(PendingSend& pending, Stream& stream);

  PipelineStage& stage_;
  Collective& pp_;
  // Sends that may still read a buffer: one per activation slot, one per gradient buffer. Id 0 =
  // none.
  std::vector<PendingSend> activation_sends_;
  std::vector<PendingSend> gradient_sends_;
};

}  // namespace convene::worker
