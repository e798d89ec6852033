#include "worker_runtime/trainer/setup.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/cpu_count.h"
#include "tools/base/logging.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/checkpointing/job_store.h"
#include "worker_runtime/comm/connect.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/matmul_choices.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/planner/utilization.h"
#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/trainer/device_choice.h"

namespace convene::worker {
namespace {

// A driver that was not in use takes up to a minute to come up with its GPUs.
constexpr absl::Duration kDevicesTimeout = absl::Minutes(5);
constexpr double kPlannedRanksMax = 1 << 20;
constexpr char kCpuRow[] = "cpu";
// Of the planner's table, for a card that it does not have: `convene plan`'s default.
constexpr char kUsualRow[] = "h100";

// The device's place in GpuNames, from 1. 0: a CPU.
int64_t RowOf(const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return 0;
  const std::optional<Gpu> gpu = GpuOfDevice(device.description());
  const std::vector<std::string> names = GpuNames();
  const auto row =
      std::find(names.begin(), names.end(), gpu.has_value() ? gpu->name : std::string(kUsualRow));
  return row - names.begin() + 1;
}

// By pipeline stage, with the head's smallest chunks: they grow into memory that is free.
std::vector<MemoryPlan> PlansOf(const TrainOptions& options, const Layout& layout, Device& device) {
  return PlanMemory(MakeEngineOptions(options, layout, /*rank=*/0, device.kind()), device);
}

// A GPU's state is read and written by way of host memory. A restart reads it from the copies in
// memory too.
bool CopiesFromDevice(const TrainOptions& options, DeviceKind device) {
  return device == DeviceKind::kCuda && !options.offload_optimizer &&
         (!options.checkpoint_dir.empty() || options.resume == ResumeMode::kDirectory ||
          options.replicate_every > 0);
}

std::string Bytes(size_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

// The first product of a process loads the library. No model has this product, so that no training
// takes the algorithm that is chosen here.
absl::Status MultiplyOnce(Device& device) {
  constexpr size_t kBytes = 3 * sizeof(float);
  CONVENE_ASSIGN_OR_RETURN(void* const data, device.memory().Allocate(kBytes));
  auto* const numbers = static_cast<float*>(data);
  MatMul(Transpose::kNo, Transpose::kNo, 1, 1, 1, numbers, numbers + 1, 0.0F, numbers + 2,
         device.compute());
  const absl::Status done = device.Synchronize(kDevicesTimeout);
  device.memory().Free(data, kBytes);
  return done;
}

}  // namespace

bool SavesInBackground(const TrainOptions& options) {
  return !options.checkpoint_dir.empty() && options.checkpoint_every > 0 &&
         options.checkpoint_every < options.steps && options.checkpoint_in_background;
}

EngineOptions MakeEngineOptions(const TrainOptions& options, const Layout& layout, int rank,
                                DeviceKind device) {
  const BatchCut cut = CutOf(options, layout);
  PipelineChoice pipeline = *PipelineOf(options, layout);
  return {.model = options.model,
          .update_rule = options.optimizer,
          .decay_embeddings = options.decay_embeddings,
          .decay_norms_and_biases = options.decay_norms_and_biases,
          .layout = layout,
          .rank = rank,
          .seed = static_cast<uint64_t>(options.seed),
          .dtype = ChoosePrecision(options.precision, device == DeviceKind::kCuda),
          .float8 = options.float8,
          .bf16_end_blocks = options.bf16_end_blocks,
          .reduce_dtype = options.reduce_dtype,
          .reproducible = options.reproducible,
          .global_microbatches = CeilDivide(cut.global_batch_size, cut.micro_batch_size),
          .recompute = options.recompute,
          .deterministic = options.deterministic || options.reproducible,
          .sequence_parallel = SplitsRows(options, layout),
          .overlap_communication = options.overlap_communication,
          .packed_documents = options.packed_documents,
          .preference_beta = options.preference_beta,
          .micro_batch_size = cut.micro_batch_size,
          .sequence_length = static_cast<int>(options.sequence_length),
          .context_method = ContextMethodOf(options, layout),
          .microbatches = static_cast<int>(MicrobatchCount(cut)),
          .schedule = std::move(pipeline.schedule),
          .shorter_schedules = RampSchedules(options, layout),
          .chunk_layers = std::move(pipeline.chunk_layers),
          .zero_stage = options.zero_stage,
          .reshard_after_forward = options.reshard_after_forward,
          .offload_optimizer = options.offload_optimizer,
          .offload_parameters = options.offload_parameters,
          .clip_grad_norm = options.clip_grad_norm,
          .cuda_graphs = ChooseGraphs(options, layout, device == DeviceKind::kCuda).use_graphs,
          .copies_for_checkpoints = SavesInBackground(options) || CopiesFromDevice(options, device),
          // Two alternate of each.
          .copies_in_memory = options.replicate_every > 0 ? 2 * (1 + options.replicas) : 0,
          .samples = RoomOf(options.samples),
          // The collective's own timeout, which names the peer, comes first.
          .timeout = 2 * options.collective_timeout};
}

absl::Status CheckFloat8(const TrainOptions& options, const Device& device) {
  if (!options.float8 || device.multiplies_float8()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("precision fp8 needs a GPU of compute capability 8.9 or later (Ada, Hopper, "
                   "Blackwell), and this one is ",
                   device.description(), "; choose precision bf16"));
}

absl::StatusOr<OpenedGpu> OpenGpuEarly(const TrainOptions& options, int local_rank) {
  const std::optional<int> gpu = ChooseDevice(options.device, Device::CudaCount(), local_rank);
  OpenedGpu opened;
  if (!gpu.has_value()) return opened;
  opened.number = *gpu;
  CONVENE_ASSIGN_OR_RETURN(opened.device, Device::Cuda(*gpu));
  CONVENE_RETURN_IF_ERROR(MultiplyOnce(*opened.device));
  return opened;
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const TrainOptions& options,
                                                   const Contract& contract, OpenedGpu early) {
  const std::optional<int> gpu =
      ChooseDevice(options.device, Device::CudaCount(), contract.local_rank);
  if (!gpu.has_value()) return Device::Cpu();
  absl::StatusOr<std::unique_ptr<Device>> opened;
  if (early.device != nullptr && early.number == *gpu) {
    opened = std::move(early.device);
  } else {
    opened = Device::Cuda(*gpu);
  }
  if (opened.ok()) CONVENE_RETURN_IF_ERROR(CheckFloat8(options, **opened));
  if (opened.ok() || options.device == DeviceChoice::kAuto) return opened;
  // No start of this program would have a GPU: a mistake of the person who starts it.
  if (absl::IsUnimplemented(opened.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("--device cuda: ", opened.status().message()));
  }
  return Annotate(opened.status(), "--device cuda");
}

std::string WhyNoGpu(const TrainOptions& options, const Device& device) {
  // The question opens GPU 0: a training on the CPU must not.
  if (options.device != DeviceChoice::kAuto || device.kind() != DeviceKind::kCpu) return "";
  return WhyNoGpu(options.device, Device::Cuda(0).status(),
                  /*program_has_cuda=*/linked_gpu_library.make != nullptr,
                  /*machine_has_gpus=*/access("/dev/nvidiactl", F_OK) == 0);
}

bool JobHasBegun(const Contract& contract) { return contract.attempt > 0; }

int PlannedWorldSize(const TrainOptions& options, const Contract& contract) {
  const double asked = AskedWorkers(options);
  return asked <= kPlannedRanksMax ? std::max(contract.world_size, static_cast<int>(asked))
                                   : contract.world_size;
}

absl::StatusOr<LayoutDecision> DecideLayoutByHardware(const TrainOptions& options,
                                                      const Contract& job, Device& device) {
  const bool is_cpu = device.kind() == DeviceKind::kCpu;
  // The workers of a node share its memory. GPUs are not shared but for trials.
  const int64_t host_bytes = Device::Cpu()->memory_bytes() / job.local_world_size;
  RankMemory has = {.device_bytes = is_cpu ? host_bytes : device.memory_bytes(),
                    .host_bytes = is_cpu ? 0 : host_bytes};
  int64_t row = RowOf(device);
  int64_t node = job.local_world_size;
  if (job.world_size > 1) {
    CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<rendezvous::StoreClient> store,
                             OpenJobStore(job));
    for (const auto& [name, number] :
         {std::pair{"/memory", &has.device_bytes}, std::pair{"/host memory", &has.host_bytes},
          std::pair{"/GPU", &row}, std::pair{"/node", &node}}) {
      if (*number == 0) continue;  // on CPUs, which all ranks have or none
      CONVENE_ASSIGN_OR_RETURN(*number,
                               AgreeOnLeast(*store, absl::StrCat(KeyPrefix(job), name), job.rank,
                                            job.world_size, *number, kDevicesTimeout));
    }
  }
  const auto planned = [&](const Layout& layout) {
    RankMemory most;
    for (const MemoryPlan& plan : PlansOf(options, layout, device)) {
      const auto host = static_cast<int64_t>(plan.host_bytes);
      const auto on_device = static_cast<int64_t>(plan.device_bytes) + (is_cpu ? host : 0);
      most.device_bytes = std::max(most.device_bytes, on_device);
      most.host_bytes = std::max(most.host_bytes, is_cpu ? 0 : host);
    }
    return most;
  };
  const std::string gpu = is_cpu ? kCpuRow : GpuNames()[row - 1];
  const JobHardware hardware = {
      .has = has, .planned = planned, .cluster = UsualCluster(gpu, static_cast<int>(node))};
  return DecideLayout(options, job.world_size, JobHasBegun(job), &hardware);
}

absl::Status PrintMemoryPlan(const TrainOptions& options, const Layout& layout, Device& device) {
  EngineOptions engine = MakeEngineOptions(options, layout, /*rank=*/0, device.kind());
  engine.logits_bytes = ChooseLogitsBytes(engine, device.memory_bytes(), device);
  const std::vector<MemoryPlan> plans = PlanMemory(engine, device);
  // Stages [begin, end).
  const auto print = [&](int begin, int end) {
    const auto plan = std::max_element(
        plans.begin() + begin, plans.begin() + end,
        [](const auto& a, const auto& b) { return a.device_bytes < b.device_bytes; });
    const std::string stages = end - begin == 1 ? absl::StrCat("stage ", begin)
                                                : absl::StrCat("stages ", begin, " to ", end - 1,
                                                               " (shown: ", plan - plans.begin(),
                                                               ", which takes the most)");
    std::printf("\n%s of %d, each of its %d ranks, on %s: %s, and %s on the host\n%s",
                stages.c_str(), layout.pp, layout.world_size() / layout.pp,
                device.description().c_str(), Bytes(plan->device_bytes).c_str(),
                Bytes(plan->host_bytes).c_str(), plan->text.c_str());
  };
  print(0, 1);
  if (layout.pp > 2) print(1, layout.pp - 1);
  if (layout.pp > 1) print(layout.pp - 1, layout.pp);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return absl::DataLossError(
      "stdout does not take the memory plan: it is closed, or its disk is full");
}

absl::StatusOr<std::unique_ptr<Device>> OpenAgreedDevice(const TrainOptions& options,
                                                         const Contract& contract,
                                                         OpenedGpu early) {
  absl::StatusOr<std::unique_ptr<Device>> opened = OpenDevice(options, contract, std::move(early));
  if (opened.ok() && contract.host_threads > 0) {
    // A worker that is bound to some of the node's CPUs has no use for more threads.
    SetThreads((*opened)->host(), std::min(contract.host_threads, CountUsableCpus()));
  }
  if (contract.world_size == 1) return opened;
  if (!opened.ok() && !absl::IsNotFound(opened.status()) &&
      !absl::IsFailedPrecondition(opened.status())) {
    return opened;
  }
  const auto tell = [&]() -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<rendezvous::StoreClient> store,
                             OpenJobStore(contract));
    const bool has_gpu = opened.ok() && (*opened)->kind() == DeviceKind::kCuda;
    return AgreeOnDevices(*store, KeyPrefix(contract), contract.world_size, HostName(), has_gpu,
                          kDevicesTimeout);
  };
  const absl::Status agreed = tell();
  // This rank's own error says more.
  if (opened.ok() && !agreed.ok()) return agreed;
  return opened;
}

std::function<void(const std::string& done)> TellsOfData(const Contract& contract,
                                                         ProgressWriter& progress) {
  bool tells_others = contract.world_size > 1 && contract.local_rank == 0;
  return [&contract, &progress, tells_others,
          store = std::shared_ptr<rendezvous::StoreClient>()](const std::string& done) mutable {
    const std::string news = absl::StrCat(done, " on ", HostName());
    progress.Tell(0, absl::StrCat("data ", news));
    if (!tells_others) return;
    // Opened by the first news: most runs find their data prepared.
    if (store == nullptr) {
      absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> opened = OpenJobStore(contract);
      tells_others = opened.ok();
      if (!tells_others) return;
      store = *std::move(opened);
    }
    // Connect tells what is wrong with the store.
    tells_others = TellOfData(*store, KeyPrefix(contract), news).ok();
  };
}

// Nodes make their token files at their own speed; the bootstrap's time begins when all have
// theirs. On a thousand GPUs NCCL needs more than the default minute, and a rank that dies
// meanwhile ends the others through their agents.
absl::StatusOr<CommunicatorSet> Connect(const TrainOptions& options, const Contract& contract,
                                        const Layout& layout, Device& device,
                                        ProgressWriter& progress) {
  if (contract.world_size == 1) return SoloCommunicators();
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<rendezvous::StoreClient> store,
                           OpenJobStore(contract));
  const std::string prefix = KeyPrefix(contract);
  const auto heard = [&](int64_t ready, const std::string& news) {
    progress.Tell(0, absl::StrCat("data ", news));
    if (contract.local_rank != 0) return;
    spdlog::info("waiting for the data: {} of {} ranks have theirs{}", ready, contract.world_size,
                 news.empty() ? "" : "; the last word of the others: " + news);
  };
  CONVENE_RETURN_IF_ERROR(WaitForData(*store, prefix, contract.world_size, {.heard = heard}));
  ConnectOptions connect{.store_port = contract.master_port,
                         .local_rank = contract.local_rank,
                         .local_world_size = contract.local_world_size};
  const absl::Duration of_this_world =
      connect.bootstrap.connect_timeout + contract.world_size * absl::Milliseconds(200);
  connect.bootstrap.connect_timeout = std::max(connect.bootstrap.connect_timeout,
                                               std::min(options.collective_timeout, of_this_world));
  connect.bootstrap.operation_timeout = options.collective_timeout;
  connect.bootstrap.checkpoint_timeout = options.checkpoint_timeout;
  connect.bootstrap.store_host = contract.master_addr;
  CONVENE_ASSIGN_OR_RETURN(const PipelineChoice pipeline, PipelineOf(options, layout));
  connect.bootstrap.pp_links = LinksOf(pipeline.schedule.placement);
  return ConnectRanks(layout, contract.rank, *store, prefix, connect, device);
}

absl::StatusOr<std::unique_ptr<JobChoices>> StartChoices(const TrainOptions& options,
                                                         const Contract& contract,
                                                         const Device& device) {
  if (device.kind() != DeviceKind::kCuda || options.deterministic) return nullptr;
  const std::string machine = absl::StrCat(device.description(), ", ", MatMulLibrary());
  std::shared_ptr<rendezvous::StoreClient> store;
  if (contract.world_size > 1) {
    CONVENE_ASSIGN_OR_RETURN(store, OpenJobStore(contract));
  }
  std::optional<ChoiceFile> file;
  if (!options.tuning_dir.empty()) file.emplace(options.tuning_dir, machine);
  return JobChoices::Start(machine, std::move(file),
                           {.rank = contract.rank,
                            .world_size = contract.world_size,
                            .offers = contract.local_rank == 0,
                            .key_prefix = KeyPrefix(contract)},
                           std::move(store));
}

void PrintRun(const TrainOptions& options, const Layout& layout, int world_size,
              const Device& device) {
  const bool is_gpu = device.kind() == DeviceKind::kCuda;
  std::printf("%sdevice       %s, %s\n", Describe(options, layout, world_size).c_str(),
              device.description().c_str(),
              options.float8 ? "bf16, products of blocks in fp8"
                             : DTypeName(ChoosePrecision(options.precision, is_gpu)));
  const std::string no_gpu = WhyNoGpu(options, device);
  if (!no_gpu.empty()) std::printf("no GPU       %s\n", no_gpu.c_str());
  const std::string graphs = ChooseGraphs(options, layout, is_gpu).text;
  if (!graphs.empty()) std::printf("CUDA graphs  %s\n", graphs.c_str());
  if (is_gpu && layout.tp > 1) {
    std::printf(
        "row chunks   %s\n",
        RowChunksOf(MakeEngineOptions(options, layout, /*rank=*/0, device.kind()), device.kind())
            .why.c_str());
  }
  const std::string slow = WhySlowAttention(options, layout, is_gpu);
  if (!slow.empty()) spdlog::warn("{}", slow);
  std::fflush(stdout);
}

}  // namespace convene::worker
