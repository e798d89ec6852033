#include "worker_runtime/schedule/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

// Writes one stage's list.
class Builder {
 public:
  Builder(int stages, int stage) : first_(stage == 0), last_(stage == stages - 1) {}

  void Forward(int microbatch) {
    if (!first_) actions.push_back({ActionKind::kRecvActivation, microbatch});
    actions.push_back({ActionKind::kForward, microbatch});
    if (!last_) actions.push_back({ActionKind::kSendActivation, microbatch});
  }

  void Backward(int microbatch) {
    if (!last_) actions.push_back({ActionKind::kRecvGradient, microbatch});
    actions.push_back({ActionKind::kBackward, microbatch});
    if (!first_) actions.push_back({ActionKind::kSendGradient, microbatch});
  }

  std::vector<Action> actions;

 private:
  const bool first_;
  const bool last_;
};

int WarmUp(int stages, int stage, int microbatches) {
  CONVENE_CHECK(stage >= 0 && stage < stages && microbatches >= 1);
  return std::min(stages - stage - 1, microbatches);
}

}  // namespace

const char* ActionName(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kSendActivation:
      return "send_activation";
    case ActionKind::kRecvActivation:
      return "recv_activation";
    case ActionKind::kSendGradient:
      return "send_gradient";
    case ActionKind::kRecvGradient:
      return "recv_gradient";
  }
  CONVENE_CHECK(false);
}

std::string ToString(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", ActionName(action.kind), " ",
                    action.microbatch);
  }
  return text;
}

std::vector<Action> OneForwardOneBackward(int stages, int stage, int microbatches) {
  const int warm_up = WarmUp(stages, stage, microbatches);
  Builder builder(stages, stage);
  for (int microbatch = 0; microbatch < warm_up; ++microbatch) builder.Forward(microbatch);
  for (int microbatch = warm_up; microbatch < microbatches; ++microbatch) {
    builder.Forward(microbatch);
    builder.Backward(microbatch - warm_up);
  }
  for (int microbatch = microbatches - warm_up; microbatch < microbatches; ++microbatch) {
    builder.Backward(microbatch);
  }
  return std::move(builder.actions);
}

std::vector<Action> ForwardOnly(int stages, int stage, int microbatches) {
  Builder builder(stages, stage);
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) builder.Forward(microbatch);
  return std::move(builder.actions);
}

int ActivationSlots(int stages, int stage, int microbatches) {
  // The steady state goes forward once more before its first backward.
  return std::min(WarmUp(stages, stage, microbatches) + 1, microbatches);
}

}  // namespace convene::worker
