#include "worker_runtime/pipeline/executor.h"

#include <deque>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

int SlotOf(const Slots& slots, int chunk, int microbatch) {
  const auto found = slots.of.find({chunk, microbatch});
  return found == slots.of.end() ? -1 : found->second;
}

StagePass PassOf(const RankPlan& plan, const Compute& compute) {
  const auto [kind, chunk, microbatch] = compute;
  return {.compute = compute,
          .saved = SlotOf(plan.saved, chunk, microbatch),
          .deferred = SlotOf(plan.deferred, chunk, microbatch),
          .input = SlotOf(plan.activations, chunk, microbatch),
          .output = SlotOf(plan.activations, chunk + 1, microbatch),
          .gradient = SlotOf(plan.gradients, chunk, microbatch)};
}

}  // namespace

PipelineExecutor::PipelineExecutor(PipelineStage& stage, Collective& pp, const RankPlan& plan)
    : stage_(stage),
      pp_(pp),
      activation_sends_(plan.activations.count),
      gradient_sends_(plan.gradients.count) {
  std::map<int, size_t> last_of_chunk;
  std::map<int, bool> has_begun;
  std::map<int, std::deque<Step>> posted;  // receives, by sender
  for (const Instruction& instruction : plan.instructions) {
    Step step = {instruction.kind, PassOf(plan, instruction.compute), instruction.peer};
    if (step.kind == InstructionKind::kReceive) {
      posted[step.peer].push_back(step);
      continue;
    }
    if (step.kind == InstructionKind::kCompute) {
      for (auto& [sender, receives] : posted) ReceiveThrough(instruction.compute, receives);
      const int chunk = step.pass.compute.chunk;
      step.pass.is_first = !std::exchange(has_begun[chunk], true);
      if (step.pass.compute.kind != ComputeKind::kForward) last_of_chunk[chunk] = steps_.size();
    }
    steps_.push_back(step);
  }
  for (const auto& [chunk, step] : last_of_chunk) steps_[step].pass.is_last = true;
}

// A receive blocks, so it comes as late as may be: before the pass that reads it. The receives
// posted before it from the same sender come first, as their messages do.
void PipelineExecutor::ReceiveThrough(const Compute& reader, std::deque<Step>& receives) {
  const auto found = absl::c_find_if(
      receives, [&](const Step& receive) { return receive.pass.compute == reader; });
  if (found == receives.end()) return;
  steps_.insert(steps_.end(), receives.begin(), found + 1);
  receives.erase(receives.begin(), found + 1);
}

absl::Status PipelineExecutor::WaitFor(PendingMessage& pending, Stream& stream) {
  if (pending.id == 0) return absl::OkStatus();
  const PendingMessage sent = std::exchange(pending, {});
  return pp_.Wait(sent, stream);
}

absl::Status PipelineExecutor::Send(ConstElements data, int peer, PendingMessage& pending,
                                    Stream& stream) {
  CONVENE_CHECK(pending.id == 0);
  CONVENE_ASSIGN_OR_RETURN(pending, pp_.Send(data, peer, stream));
  return absl::OkStatus();
}

// A slot is written anew only when the send of what lay there is done.
absl::Status PipelineExecutor::Do(const Step& step, Stream& stream) {
  const StagePass& pass = step.pass;
  const bool is_forward = pass.compute.kind == ComputeKind::kForward;
  const int read = is_forward ? pass.input : pass.gradient;
  const int written = is_forward ? pass.output : pass.gradient;
  std::vector<PendingMessage>& sends = is_forward ? activation_sends_ : gradient_sends_;
  const auto data = [&](int slot) {
    return is_forward ? stage_.activation(slot) : stage_.gradient(slot);
  };
  switch (step.kind) {
    case InstructionKind::kReceive:
      CONVENE_RETURN_IF_ERROR(WaitFor(sends[read], stream));
      return pp_.Recv(data(read), step.peer, stream);
    case InstructionKind::kCompute:
      if (written >= 0) CONVENE_RETURN_IF_ERROR(WaitFor(sends[written], stream));
      return stage_.Run(pass, stream);
    case InstructionKind::kSend:
      return Send(data(written), step.peer, sends[written], stream);
  }
  CONVENE_CHECK(false);
}

absl::Status PipelineExecutor::Run(Stream& stream) {
  for (const Step& step : steps_) CONVENE_RETURN_IF_ERROR(Do(step, stream));
  for (PendingMessage& pending : activation_sends_) CONVENE_RETURN_IF_ERROR(WaitFor(pending, stream));
  for (PendingMessage& pending : gradient_sends_) CONVENE_RETURN_IF_ERROR(WaitFor(pending, stream));
  return absl::OkStatus();
}

}  // namespace convene::worker
