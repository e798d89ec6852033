// The memory plan is the memory that the process then has.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/loss_head.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

// Counts the bytes that it is asked for.
class CountingMemory final : public Memory {
 public:
  explicit CountingMemory(Memory& base) : base_(base) {}
  absl::StatusOr<void*> Allocate(size_t bytes) override {
    allocated += bytes;
    return base_.Allocate(bytes);
  }
  void Free(void* data, size_t bytes) override { base_.Free(data, bytes); }
  size_t allocated = 0;

 private:
  Memory& base_;
};

class CountingDevice final : public testing::ForwardingDevice {
 public:
  explicit CountingDevice(Device& device)
      : ForwardingDevice(device), of_device(device.memory()), of_host(device.staging()) {}
  Memory& memory() override { return of_device; }
  Memory& staging() override { return of_host; }
  CountingMemory of_device, of_host;
};

TEST_CASE("the engine allocates what the plan says, to the byte") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const Layout layout = GENERATE(Layout{}, Layout{.pp = 3, .dp = 2, .tp = 2, .dp_replicate = 2},
                                 Layout{.dp = 3, .tp = 4}, Layout{.dp = 3, .tp = 16},
                                 Layout{.dp = 2, .tp = 2, .cp = 2});
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  const bool copies = GENERATE(false, true);
  const int zero_stage = GENERATE(1, 3);
  const bool offloads = GENERATE(false, true);
  const auto model = NamedModel("llama-tiny");
  REQUIRE_OK(model);
  const std::unique_ptr<Device> plain = testing::MakeTestDevice();
  EngineOptions options = {.model = *model,
                           .layout = layout,
                           .dtype = dtype,
                           .recompute = zero_stage == 3 ? Recompute::kFull : Recompute::kNone,
                           .sequence_parallel = zero_stage == 3 && layout.tp <= 4,
                           .row_chunks = 2,
                           .packed_documents = copies,
                           .micro_batch_size = 2,
                           .sequence_length = 16,
                           .microbatches = copies ? 1 : 5,
                           .zero_stage = zero_stage,
                           .offload_optimizer = offloads,
                           .copies_for_checkpoints = copies,
                           .fresh_weights = false};
  CountingDevice untouched(*plain);
  const std::vector<MemoryPlan> plans = PlanMemory(options, untouched);
  CHECK(untouched.of_device.allocated == 0);
  CHECK(untouched.of_host.allocated == 0);
  REQUIRE(static_cast<int>(plans.size()) == layout.pp);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    options.rank = rank;
    INFO("rank " << rank << " of " << layout.ToString());
    CommunicatorSet communicators = PlannedCommunicators(layout, rank);
    CountingDevice device(*plain);
    REQUIRE_OK(Engine::Create(options, communicators, device));
    const MemoryPlan& plan = plans[CoordinateOf(layout, rank).pp];
    CHECK(device.of_device.allocated == plan.device_bytes);
    CHECK(device.of_host.allocated == plan.host_bytes);
  }
}

TEST_CASE("the plan has the adapters of experts, and no gradients of what is frozen") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const Layout layout = GENERATE(Layout{}, Layout{.pp = 2, .dp = 2, .tp = 2, .ep = 2});
  const std::unique_ptr<Device> plain = testing::MakeTestDevice();
  EngineOptions options = {.model = *NamedModel("deepseek-tiny"),
                           .layout = layout,
                           .micro_batch_size = 2,
                           .sequence_length = 16,
                           .microbatches = 2,
                           .fresh_weights = false};
  const auto planned = [&] {
    size_t bytes = 0;
    for (const MemoryPlan& plan : PlanMemory(options, *plain)) bytes += plan.device_bytes;
    return bytes;
  };
  const size_t of_all = planned();
  options.model.adapter = {.rank = 2, .alpha = 4};
  const size_t without_experts = planned();
  options.model.adapter.targets = {"gate_proj", "up_proj", "down_proj"};
  const size_t without_dropout = planned();
  options.model.adapter.dropout = 0.1;
  CHECK(without_experts < without_dropout);
  CHECK(without_dropout < planned());
  CHECK(planned() < of_all);
  const std::vector<MemoryPlan> plans = PlanMemory(options, *plain);
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    options.rank = rank;
    CommunicatorSet communicators = PlannedCommunicators(layout, rank);
    CountingDevice device(*plain);
    REQUIRE_OK(Engine::Create(options, communicators, device));
    const MemoryPlan& plan = plans[CoordinateOf(layout, rank).pp];
    CHECK(device.of_device.allocated == plan.device_bytes);
    CHECK(device.of_host.allocated == plan.host_bytes);
  }
}

TEST_CASE("the plan has the gradient that rows in chunks keep beside its layer's input") {
  if (testing::OnGpus()) return;  // PURE
  EngineOptions options = {.model = *NamedModel("llama-tiny"),
                           .layout = {.tp = 2},
                           .sequence_parallel = true,
                           .row_chunks = 1,
                           .micro_batch_size = 2,
                           .sequence_length = 64};
  const std::unique_ptr<Device> device = Device::Cpu();
  const size_t whole = PlanMemory(options, *device).front().device_bytes;
  options.row_chunks = 2;
  const int rows = options.micro_batch_size * options.sequence_length;
  const int wider = (options.model.ffn_size - options.model.heads * options.model.head_size) / 2;
  CHECK(PlanMemory(options, *device).front().device_bytes == whole + sizeof(float) * rows * wider);
  options.sequence_parallel = false;
  const size_t not_split = PlanMemory(options, *device).front().device_bytes;
  options.row_chunks = 1;
  CHECK(PlanMemory(options, *device).front().device_bytes == not_split);
}

TEST_CASE("the plan has the host's lists of where tokens go") {
  const std::unique_ptr<Device> device = Device::Cpu();
  EngineOptions options = {
      .model = *NamedModel("moe-tiny"), .micro_batch_size = 2, .sequence_length = 16};
  const size_t with = PlanMemory(options, *device).front().host_bytes;
  const int choices = 2 * 16 * options.model.experts.chosen;
  options.model.experts = {};
  const size_t without = PlanMemory(options, *device).front().host_bytes;
  // Of each layer six lists of all choices, and borders and counts in cache lines; the choices.
  const size_t lists = sizeof(int32_t) * 6 * choices + 4 * 64;
  CHECK(with - without == options.model.layers * lists + sizeof(int32_t) * choices);
}

TEST_CASE("the head's chunks grow to 2 GiB where every stage's plan keeps to 0.9 of the memory") {
  const std::unique_ptr<Device> cpu = Device::Cpu();
  CHECK(ChooseLogitsBytes({.model = *NamedModel("llama-tiny")}, int64_t{1} << 40, *cpu) ==
        LossLogitsBytes(DeviceKind::kCpu));
  if (!testing::OnGpus() || !testing::HasPlacesOrSkips(1)) return;
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  Device& gpu = *device;
  // 8 GiB of logits.
  EngineOptions options = {.model = *NamedModel("llama-tiny"),
                           .layout = {.pp = 2},
                           .dtype = DType::kBFloat16,
                           .micro_batch_size = 1,
                           .sequence_length = 32768};
  options.model.vocabulary_size = 131072;
  const auto plan = [&](size_t logits_bytes) {
    options.logits_bytes = logits_bytes;
    const std::vector<MemoryPlan> plans = PlanMemory(options, gpu);
    return std::pair(plans[0].device_bytes, plans[1].device_bytes);
  };
  const size_t gib = size_t{1} << 30;
  const auto [first, least] = plan(0);
  const auto [first_again, most] = plan(2 * gib);
  CHECK(first == first_again);
  CHECK(least == plan(gib / 2).second);
  CHECK(most >= least + 3 * gib / 2);
  const auto memory_for = [](size_t bytes) {
    return static_cast<int64_t>(static_cast<double>(bytes) / 0.9) + 2;
  };
  for (const size_t from : {size_t{0}, gib}) {
    INFO("whatever stood there: " << from);
    options.logits_bytes = from;
    CHECK(ChooseLogitsBytes(options, memory_for(most), gpu) == 2 * gib);
    CHECK(ChooseLogitsBytes(options, memory_for(most) - 4, gpu) == gib);
    CHECK(ChooseLogitsBytes(options, memory_for(plan(gib).second) - 4, gpu) == gib / 2);
    CHECK(ChooseLogitsBytes(options, 1, gpu) == gib / 2);  // it fits or fails as before
  }
  // All rows fit in the smallest chunk: a larger one is none, whatever the memory.
  options.sequence_length = 1024;
  CHECK(ChooseLogitsBytes(options, 1, gpu) == 2 * gib);
}

TEST_CASE("another stage that is full does not keep the head's chunks small") {
  if (!testing::OnGpus() || !testing::HasPlacesOrSkips(1)) return;
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  Device& gpu = *device;
  EngineOptions options = {.model = *NamedModel("llama-tiny"),
                           .layout = {.pp = 2},
                           .dtype = DType::kBFloat16,
                           .micro_batch_size = 1,
                           .sequence_length = 32768,
                           .chunk_layers = {39, 1}};
  options.model.layers = 40;
  options.model.vocabulary_size = 131072;
  options.schedule = *MakeSchedule("1f1b", 2, 0, 1);
  options.logits_bytes = size_t{2} << 30;
  const std::vector<MemoryPlan> plans = PlanMemory(options, gpu);
  REQUIRE(plans[0].device_bytes > plans[1].device_bytes);
  const auto memory = static_cast<int64_t>(static_cast<double>(plans[1].device_bytes) / 0.9) + 2;
  REQUIRE(static_cast<double>(plans[0].device_bytes) > 0.9 * static_cast<double>(memory));
  CHECK(ChooseLogitsBytes(options, memory, gpu) == options.logits_bytes);
}

// A line of /proc/self/status, in bytes.
int64_t StatusBytes(const std::string& name) {
  const auto text = ReadFile("/proc/self/status");
  REQUIRE_OK(text);
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t kib = 0;
    if (!absl::StartsWith(line, name) || words.size() < 2) continue;
    const absl::string_view number = words[words.size() - 2];
    const size_t tab = number.rfind('\t');
    REQUIRE(absl::SimpleAtoi(number.substr(tab == number.npos ? 0 : tab + 1), &kib));
    return kib << 10;
  }
  FAIL("no " << name);
  return 0;
}

// One training step and one validation.
void Train(const EngineOptions& options, Device& device) {
  CommunicatorSet communicators = SoloCommunicators();
  const auto engine = Engine::Create(options, communicators, device);
  REQUIRE_OK(engine);
  const std::vector<int32_t> tokens(
      size_t{1} * options.microbatches * options.micro_batch_size * options.sequence_length, 65);
  const TokenBatch batch{tokens.data(), tokens.data(), static_cast<int64_t>(tokens.size())};
  REQUIRE_OK(TrainStep(**engine, batch, {.learning_rate = 1e-3, .step = 1}));
  REQUIRE_OK((*engine)->ForwardLoss(batch, options.microbatches));
}

TEST_CASE("a process that trains takes as much memory as planned, within 3 %") {
  if (testing::OnGpus()) return;  // what a process takes beside a GPU's memory is not planned
  EngineOptions options = {.micro_batch_size = 4, .sequence_length = 64, .microbatches = 2};
  const auto tiny = NamedModel("llama-tiny");
  REQUIRE_OK(tiny);
  options.model = *tiny;
  options.model.hidden_size = 512;
  options.model.heads = 8;
  options.model.kv_heads = 4;
  options.model.head_size = 64;
  options.model.ffn_size = 1024;
  options.model.vocabulary_size = 4096;
  const std::unique_ptr<Device> device = Device::Cpu();
  // A process has threads, and the libraries' kernels for these shapes, with any number of layers.
  options.model.layers = 1;
  Train(options, *device);
  Train(options, *device);  // now malloc also keeps what it first mapped for one use
  options.model.layers = 6;
  double highest = 0;
  // The peak rises each time: what is offloaded takes more of a CPU.
  for (const auto& [recompute, offloads] :
       {std::pair(Recompute::kFull, false), std::pair(Recompute::kNone, false),
        std::pair(Recompute::kNone, true)}) {
    options.recompute = recompute;
    options.offload_optimizer = offloads;
    const MemoryPlan plan = PlanMemory(options, *device).front();
    const double planned = static_cast<double>(plan.device_bytes + plan.host_bytes);
    REQUIRE(planned > highest + 10e6);
    highest = planned;
    const int64_t before = StatusBytes("VmRSS:");
    Train(options, *device);
    const double taken = static_cast<double>(StatusBytes("VmHWM:") - before);
    INFO(plan.text << "planned " << planned << " bytes, taken " << taken);
    CHECK(taken == Approx(planned).epsilon(0.03));
  }
}

}  // namespace
}  // namespace convene::worker
