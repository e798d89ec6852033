#include "worker_runtime/trainer/training.h"

#include <memory>
#include <optional>
#include <utility>

#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpointing/job_store.h"
#include "worker_runtime/checkpointing/spares.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/connect.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/matmul_choices.h"
#include "worker_runtime/options/elastic_layout.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/trainer/device_choice.h"
#include "worker_runtime/trainer/run_data.h"
#include "worker_runtime/trainer/setup.h"
#include "worker_runtime/trainer/training_loop.h"
#include "worker_runtime/tuning/job_choices.h"

namespace convene::worker {
namespace {

// A connection that breaks while training means that a peer died: that peer's end is the cause, and
// this rank only has to start again.
absl::StatusOr<TrainingEnd> BlamePeer(const absl::StatusOr<TrainingEnd>& end) {
  if (!absl::IsUnavailable(end.status())) return end;
  return absl::AbortedError(end.status().message());
}

absl::StatusOr<std::unique_ptr<SpareWishes>> ListenToSpares(const Contract& contract) {
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<rendezvous::StoreClient> store, OpenJobStore(contract));
  return SpareWishes::Listen(std::move(store), KeyPrefix(contract));
}

absl::StatusOr<TrainingEnd> EndWithMemoryPlan(const TrainOptions& options, const Contract& contract,
                                              const Layout& layout, Device& device) {
  if (contract.rank == 0) CONVENE_RETURN_IF_ERROR(PrintMemoryPlan(options, layout, device));
  return TrainingEnd::kFinished;
}

}  // namespace

absl::StatusOr<TrainingEnd> RunTraining(const TrainOptions& asked, const Contract& job,
                                        StopToken& stop, OpenedGpu opened) {
  TrainOptions options = asked;
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadRunTokenizer(&options));
  const int world_size =
      options.print_memory_plan ? PlannedWorldSize(options, job) : job.world_size;
  CONVENE_ASSIGN_OR_RETURN(LayoutDecision decision,
                           DecideLayout(options, world_size, JobHasBegun(job)));
  std::unique_ptr<Device> device;
  if (decision.depends_on_hardware && !options.print_memory_plan) {
    CONVENE_ASSIGN_OR_RETURN(device, OpenAgreedDevice(options, job, std::exchange(opened, {})));
    CONVENE_ASSIGN_OR_RETURN(decision, DecideLayoutByHardware(options, job, *device));
  }
  const Layout layout = decision.layout;
  const int spares = world_size - layout.world_size();
  if (job.rank >= layout.world_size() && !options.print_memory_plan) {
    device.reset();
    const absl::StatusOr<bool> all_steps_done = RunAsSpare(job, layout, stop);
    if (!all_steps_done.ok()) return BlamePeer(all_steps_done.status());
    return *all_steps_done ? TrainingEnd::kFinished : TrainingEnd::kStopped;
  }
  if (job.rank == 0 && !decision.why.empty()) spdlog::info("{}", decision.why);
  const Contract contract = WithoutSpares(job, layout);
  if (device == nullptr) {
    CONVENE_ASSIGN_OR_RETURN(device, options.print_memory_plan
                                         ? OpenDevice(options, contract)
                                         : OpenAgreedDevice(options, contract, std::move(opened)));
  }
  const bool is_gpu = device->kind() == DeviceKind::kCuda;
  CONVENE_RETURN_IF_ERROR(CheckSchedule(options, layout, is_gpu));
  if (contract.rank == 0) PrintRun(options, layout, world_size, *device);
  if (options.print_memory_plan) return EndWithMemoryPlan(options, contract, layout, *device);
  const std::unique_ptr<ProgressWriter> progress = OpenProgress(contract.progress_path);
  // NCCL's operations wait on the GPU: for which rank, no thread here can tell.
  std::optional<AwaitedReports> awaited_reports;
  if (!is_gpu) awaited_reports.emplace(*progress);
  progress->Tell(0, "startup");
  CONVENE_ASSIGN_OR_RETURN(const RunData data, OpenRunData(options, *tokenizer, contract,
                                                           TellsOfData(contract, *progress)));
  CONVENE_ASSIGN_OR_RETURN(CommunicatorSet communicators,
                           Connect(options, contract, layout, *device, *progress));
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<JobChoices> choices,
                           StartChoices(options, contract, *device));
  const ScopedMatMulChoices asked_choices(choices.get());
  const std::unique_ptr<Memory> collective_memory = CollectiveMemory(communicators, *device);
  std::unique_ptr<SpareWishes> spare_wishes;
  if (spares > 0 && contract.rank == 0) {
    CONVENE_ASSIGN_OR_RETURN(spare_wishes, ListenToSpares(contract));
  }
  Training training(options, contract, layout, data, *tokenizer, communicators, *device,
                    collective_memory.get(), choices.get(), stop, spare_wishes.get(), *progress);
  absl::StatusOr<TrainingEnd> end = training.Run();
  if (end.ok() && spares > 0 && contract.rank == 0) {
    EndSpares(contract, *end == TrainingEnd::kFinished);
  }
  if (end.ok()) return end;
  // The connections close before the memory goes: open messages still point into it, and the GPU
  // may still be working on it. A CPU's queue may hold calls of several communicators: none of them
  // is to wait for its peers, when another one is closed.
  if (!is_gpu) {
    communicators.AbortAll("the training has failed");
    // Work that queues still hold of a communicator ends before its group goes.
    (void)device->Synchronize(absl::InfiniteDuration());
  }
  communicators = CommunicatorSet();
  return BlamePeer(end);
}

}  // namespace convene::worker
