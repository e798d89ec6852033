#include "worker_runtime/pipeline/executor.h"

#include <map>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker {
namespace {

int SlotOf(const Slots& slots, int chunk, int microbatch) {
  const auto found = slots.of.find({chunk, microbatch});
  return found == slots.of.end() ? -1 : found->second;
}

const char* NameOf(ComputeKind kind) {
  switch (kind) {
    case ComputeKind::kForward:
      return "forward";
    case ComputeKind::kBackward:
      return "backward";
    case ComputeKind::kBackwardInput:
      return "backward, input half";
    case ComputeKind::kBackwardWeight:
      return "backward, weight half";
  }
  CONVENE_CHECK(false);
}

StagePass PassOf(const RankPlan& plan, const Compute& compute) {
  const auto [kind, chunk, microbatch] = compute;
  const bool is_half = kind == ComputeKind::kBackwardInput || kind == ComputeKind::kBackwardWeight;
  return {.compute = compute,
          .saved = SlotOf(plan.saved, chunk, microbatch),
          .deferred = is_half ? SlotOf(plan.deferred, chunk, microbatch) : -1,
          .head = SlotOf(plan.heads, chunk, microbatch),
          .input = SlotOf(plan.activations, chunk, microbatch),
          .output = SlotOf(plan.activations, chunk + 1, microbatch),
          .gradient = SlotOf(plan.gradients, chunk, microbatch)};
}

}  // namespace

PipelineExecutor::PipelineExecutor(PipelineStage& stage, Collective& pp, const RankPlan& plan)
    : stage_(stage),
      pp_(pp),
      activations_(plan.activations.count),
      gradients_(plan.gradients.count) {
  std::map<int, size_t> last_of_chunk;
  std::map<std::pair<int, bool>, bool> has_begun;  // by chunk and whether it is forward
  std::map<int, bool> has_weights;                 // by chunk
  for (const Instruction& instruction : plan.instructions) {
    StagePass pass = PassOf(plan, instruction.compute);
    if (instruction.kind == InstructionKind::kCompute) {
      const auto [kind, chunk, microbatch] = pass.compute;
      const bool is_forward = kind == ComputeKind::kForward;
      if (kind != ComputeKind::kBackwardWeight) {
        pass.is_first = !std::exchange(has_begun[{chunk, is_forward}], true);
      }
      if (kind == ComputeKind::kBackward || kind == ComputeKind::kBackwardWeight) {
        pass.is_first_weight = !std::exchange(has_weights[chunk], true);
      }
      if (!is_forward) last_of_chunk[chunk] = steps_.size();
    }
    steps_.push_back({instruction.kind, pass, instruction.peer});
  }
  for (const auto& [chunk, step] : last_of_chunk) steps_[step].pass.is_last = true;
}

absl::Status PipelineExecutor::WaitFor(PendingMessage& pending, Stream& stream) {
  if (pending.id == 0) return absl::OkStatus();
  return pp_.Wait(std::exchange(pending, {}), stream);
}

absl::Status PipelineExecutor::RunPass(const StagePass& pass, Stream& stream) {
  const auto [kind, chunk, microbatch] = pass.compute;
  const PassScope scope(stream, NameOf(kind), {.chunk = chunk, .microbatch = microbatch});
  return stage_.Run(pass, stream);
}

// A pass reads a slot once its message is there. A slot is written anew once the send of what lay
// there is over.
absl::Status PipelineExecutor::Do(const Step& step, Stream& stream) {
  const StagePass& pass = step.pass;
  if (pass.compute.kind == ComputeKind::kBackwardWeight) return RunPass(pass, stream);
  const bool is_forward = pass.compute.kind == ComputeKind::kForward;
  const int read = is_forward ? pass.input : pass.gradient;
  const int written = is_forward ? pass.output : pass.gradient;
  std::vector<PendingMessage>& messages = is_forward ? activations_ : gradients_;
  const auto data = [&](int slot) {
    return is_forward ? stage_.activation(slot) : stage_.gradient(slot);
  };
  switch (step.kind) {
    case InstructionKind::kReceive: {
      CONVENE_RETURN_IF_ERROR(WaitFor(messages[read], stream));
      CONVENE_ASSIGN_OR_RETURN(messages[read], pp_.StartRecv(data(read), step.peer, stream));
      return absl::OkStatus();
    }
    case InstructionKind::kCompute:
      if (read >= 0) CONVENE_RETURN_IF_ERROR(WaitFor(messages[read], stream));
      if (written >= 0) CONVENE_RETURN_IF_ERROR(WaitFor(messages[written], stream));
      return RunPass(pass, stream);
    case InstructionKind::kSend: {
      CONVENE_CHECK(messages[written].id == 0);
      CONVENE_ASSIGN_OR_RETURN(messages[written], pp_.Send(data(written), step.peer, stream));
      return absl::OkStatus();
    }
  }
  CONVENE_CHECK(false);
}

absl::Status PipelineExecutor::Run(Stream& stream) {
  for (const Step& step : steps_) CONVENE_RETURN_IF_ERROR(Do(step, stream));
  for (PendingMessage& pending : activations_) CONVENE_RETURN_IF_ERROR(WaitFor(pending, stream));
  for (PendingMessage& pending : gradients_) CONVENE_RETURN_IF_ERROR(WaitFor(pending, stream));
  return absl::OkStatus();
}

}  // namespace convene::worker
