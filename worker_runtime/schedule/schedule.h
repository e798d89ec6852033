// PURE. Pipeline schedules as lists of actions, one list per stage: tests prove order, memory and
// bubble without running a model.
#pragma once

#include <string>
#include <vector>

namespace convene::worker {

enum class ActionKind {
  kForward,
  kBackward,
  kSendActivation,  // to the next stage
  kRecvActivation,  // from the previous stage
  kSendGradient,    // to the previous stage
  kRecvGradient,    // from the next stage
};

// "forward", "recv_gradient".
const char* ActionName(ActionKind kind);

struct Action {
  ActionKind kind;
  int microbatch;
  friend bool operator==(const Action&, const Action&) = default;
};

// "forward 0, send_activation 0, ...".
std::string ToString(const std::vector<Action>& actions);

// One forward, one backward (PipeDream-flush): Narayanan et al., "Efficient Large-Scale Language
// Model Training on GPU Clusters Using Megatron-LM", SC 2021, section 2.2. A stage first runs
// min(stages - stage - 1, microbatches) forwards, then alternates, then drains.
//
// Receives block. Sends are buffered: an executor starts a send at its place in the list, and waits
// for its end no earlier than it needs the memory again. Under these rules no order of execution
// deadlocks (simulate.h). Every receive stands right before the action that uses its data, every
// send right after the action that made them.
//
// The first stage has no activations to receive and no gradients to send; the last stage has no
// activations to send and no gradients to receive. REQUIRES: 0 <= stage < stages, microbatches >=
// 1.
std::vector<Action> OneForwardOneBackward(int stages, int stage, int microbatches);

// Every microbatch forward and none backward: validation. REQUIRES: as above.
std::vector<Action> ForwardOnly(int stages, int stage, int microbatches);

// The most microbatches that have gone forward but not yet backward through the stage at any time
// under OneForwardOneBackward: how many sets of saved activations it needs. Microbatch m may use
// the set m % ActivationSlots. REQUIRES: as above.
int ActivationSlots(int stages, int stage, int microbatches);

}  // namespace convene::worker
