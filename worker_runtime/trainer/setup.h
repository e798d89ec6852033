// Makes all that a rank needs to train: a device, data, connections, and the engine's options.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// Opens this rank's own device, as ChooseDevice (device_choice.h) chooses it. Errors:
// ChooseDevice's, Device::Cuda's.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const TrainOptions& options,
                                                   const Contract& contract);
// Every rank calls it. Opens the same kind on all ranks, or gives an error on all (AgreeOnDevices,
// job_store.h). A GPU that exists and fails is that rank's own trouble, which ends the epoch, not
// the job.
absl::StatusOr<std::unique_ptr<Device>> OpenAgreedDevice(const TrainOptions& options,
                                                         const Contract& contract);

// Makes the token file when it is absent; the rank with local rank 0 prints how far it has come.
// InvalidArgument when the data has tokens that the model does not know, or packed documents whose
// end occurs nowhere; PrepareTokenFile's and Dataset::Open's errors.
absl::StatusOr<Dataset> OpenData(const TrainOptions& options, const Contract& contract);

// Waits until all ranks have their data, and connects them. Errors: OpenJobStore's, WaitForAll's,
// ConnectRanks'.
absl::StatusOr<CommunicatorSet> Connect(const TrainOptions& options, const Contract& contract,
                                        const Layout& layout, Device& device);

// PURE. REQUIRES: ValidateOptions said OK.
EngineOptions MakeEngineOptions(const TrainOptions& options, const Layout& layout, int rank,
                                DeviceKind device);

// PURE. The size of the world that a memory plan is for. LayoutOf refuses an impossible layout
// later.
int PlannedWorldSize(const TrainOptions& options, const Contract& contract);
// Prints one table a pipeline stage: all ranks of a stage take the same memory.
void PrintMemoryPlan(const TrainOptions& options, const Layout& layout, Device& device);

}  // namespace convene::worker
