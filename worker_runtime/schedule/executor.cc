#include "worker_runtime/schedule/executor.h"

#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

PipelineExecutor::PipelineExecutor(PipelineStage& stage, Collective& pp, int slots)
    : stage_(stage), pp_(pp), activation_sends_(slots), gradient_sends_(2) {}

absl::Status PipelineExecutor::WaitFor(PendingSend& pending, Stream& stream) {
  if (pending.id == 0) return absl::OkStatus();
  const PendingSend sent = pending;
  pending = {};
  return pp_.Wait(sent, stream);
}

absl::Status PipelineExecutor::Send(ConstElements data, int peer, PendingSend& pending,
                                    Stream& stream) {
  CONVENE_CHECK(pending.id == 0);
  CONVENE_ASSIGN_OR_RETURN(pending, pp_.Send(data, peer, stream));
  return absl::OkStatus();
}

absl::Status PipelineExecutor::Do(const Action& action, Stream& stream) {
  const int microbatch = action.microbatch;
  PendingSend& activation_send = activation_sends_[microbatch % activation_sends_.size()];
  PendingSend& gradient_send = gradient_sends_[microbatch % gradient_sends_.size()];
  switch (action.kind) {
    case ActionKind::kRecvActivation:
      return pp_.Recv(stage_.input(microbatch), pp_.rank() - 1, stream);
    case ActionKind::kForward:
      CONVENE_RETURN_IF_ERROR(WaitFor(activation_send, stream));
      return stage_.Forward(microbatch, stream);
    case ActionKind::kSendActivation:
      return Send(stage_.output(microbatch), pp_.rank() + 1, activation_send, stream);
    case ActionKind::kRecvGradient:
      CONVENE_RETURN_IF_ERROR(WaitFor(gradient_send, stream));
      return pp_.Recv(stage_.gradient(microbatch), pp_.rank() + 1, stream);
    case ActionKind::kBackward:
      // On the last stage no receive came before this pass, which waited already.
      CONVENE_RETURN_IF_ERROR(WaitFor(gradient_send, stream));
      return stage_.Backward(microbatch, stream);
    case ActionKind::kSendGradient:
      return Send(stage_.gradient(microbatch), pp_.rank() - 1, gradient_send, stream);
  }
  CONVENE_CHECK(false);
}

absl::Status PipelineExecutor::Run(const std::vector<Action>& actions, Stream& stream) {
  for (const Action& action : actions) CONVENE_RETURN_IF_ERROR(Do(action, stream));
  for (PendingSend& pending : activation_sends_) CONVENE_RETURN_IF_ERROR(WaitFor(pending, stream));
  for (PendingSend& pending : gradient_sends_) CONVENE_RETURN_IF_ERROR(WaitFor(pending, stream));
  return absl::OkStatus();
}

}  // namespace convene::worker
