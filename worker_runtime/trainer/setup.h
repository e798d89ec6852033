// Makes what a rank needs to train: a device, connections, and the engine's options.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/elastic_layout.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/tuning/job_choices.h"

namespace convene::worker {

// FailedPrecondition where the precision is fp8 and the device has no such products.
absl::Status CheckFloat8(const TrainOptions& options, const Device& device);

// A GPU that a spare (session/warm_spare.h) has opened; null: none.
struct OpenedGpu {
  int number = 0;
  std::unique_ptr<Device> device;
};
// The GPU that OpenDevice would open for this local rank, with cuBLASLt loaded; a null one where it
// would open none. After an error this process may not be able to use the GPU any more: a new one
// says why. Errors: Device::Cuda's, the device's.
absl::StatusOr<OpenedGpu> OpenGpuEarly(const TrainOptions& options, int local_rank);

// Opens this rank's own device, as ChooseDevice (device_choice.h) chooses it; it is `opened` where
// that is the one. Errors: Device::Cuda's; FailedPrecondition in a program without CUDA;
// CheckFloat8's.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const TrainOptions& options,
                                                   const Contract& contract, OpenedGpu opened = {});
// WhyNoGpu (device_choice.h) of this program on this machine, for the device that was opened.
std::string WhyNoGpu(const TrainOptions& options, const Device& device);
// Every rank calls it. Opens the same kind on all ranks, or gives an error on all (AgreeOnDevices,
// job_store.h). A GPU that exists and fails is that rank's own trouble, which ends the epoch, not
// the job.
absl::StatusOr<std::unique_ptr<Device>> OpenAgreedDevice(const TrainOptions& options,
                                                         const Contract& contract,
                                                         OpenedGpu opened = {});

// Returns a function that tells how far this node has come with its data ("31.4%"). Each rank tells
// its agent, which watches that the rank comes further. One rank of each node also tells the ranks
// that wait in Connect. Both arguments must outlive the function.
std::function<void(const std::string& done)> TellsOfData(const Contract& contract,
                                                         ProgressWriter& progress);

// Waits until all ranks have their data, and connects them. Errors: OpenJobStore's, WaitForData's,
// ConnectRanks'.
absl::StatusOr<CommunicatorSet> Connect(const TrainOptions& options, const Contract& contract,
                                        const Layout& layout, Device& device,
                                        ProgressWriter& progress);

// The algorithms of products that the ranks share and tuning_dir keeps, for ScopedMatMulChoices.
// Null where none is timed: on a CPU, and with `deterministic`. Every rank calls it, after Connect.
// Errors: OpenJobStore's, JobChoices::Start's.
absl::StatusOr<std::unique_ptr<JobChoices>> StartChoices(const TrainOptions& options,
                                                         const Contract& contract,
                                                         const Device& device);

// PURE. REQUIRES: ValidateOptions said OK.
EngineOptions MakeEngineOptions(const TrainOptions& options, const Layout& layout, int rank,
                                DeviceKind device);

// Prints what will be trained on which device, and warns where a layout is slow there. For rank 0.
void PrintRun(const TrainOptions& options, const Layout& layout, int world_size,
              const Device& device);

// PURE. Whether checkpoints are written beside the training: the last one of a run never is.
bool SavesInBackground(const TrainOptions& options);

// DecideLayout by the memory of the rank that has the least, on the planner's row of the ranks'
// GPUs (of several kinds the one that comes first in its table) or of a CPU, in nodes as the
// smallest one is. Every rank of the job calls it, spares too, and all get the same. `device`: this
// rank's own. Errors: OpenJobStore's, AgreeOnLeast's, DecideLayout's.
absl::StatusOr<LayoutDecision> DecideLayoutByHardware(const TrainOptions& options,
                                                      const Contract& job, Device& device);
// PURE. Whether the job had an epoch before this one. Then a layout with fewer workers than were
// asked for is no mistake (DecideLayout), because a node may be lost. Only our agents tell all
// ranks the same about it; under torchrun it stays a mistake.
bool JobHasBegun(const Contract& contract);

// PURE. The size of the world that a memory plan is for. DecideLayout refuses an impossible layout
// later.
int PlannedWorldSize(const TrainOptions& options, const Contract& contract);
// Prints a table for each kind of rank: those of the first pipeline stage, of the middle ones, of
// the last. The ranks of a stage take the same memory; of several stages the one that takes the
// most is shown. DataLoss: stdout does not take all of it.
absl::Status PrintMemoryPlan(const TrainOptions& options, const Layout& layout, Device& device);

}  // namespace convene::worker
