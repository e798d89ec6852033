#include "worker_runtime/trainer/setup.h"

#include <omp.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/cpu_count.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/options/load_options.h"
#include "worker_runtime/testing/forwarding_device.h"

namespace convene::worker {
namespace {

// Of regions in the device's host().
int HostThreads(int told) {
  const auto device = OpenAgreedDevice({.device = DeviceChoice::kCpu}, {.host_threads = told});
  REQUIRE_OK(device);
  int threads = 0;
  RunIn((*device)->host(), [&] { threads = omp_get_max_threads(); });
  AwaitAll((*device)->host());
  return threads;
}

// This process has an OMP_NUM_THREADS of 1.
TEST_CASE("the host's own arithmetic has the threads that the agent tells, else OpenMP's") {
  CHECK(HostThreads(0) == 1);
  CHECK(HostThreads(2) == std::min(2, CountUsableCpus()));
  CHECK(HostThreads(1000) == CountUsableCpus());
}

TEST_CASE("a GPU that a spare has opened is the rank's where it is the one of its local rank") {
  const TrainOptions options = {.device = DeviceChoice::kCuda};
  const Contract contract = {.local_rank = 3, .local_world_size = 4};
  std::unique_ptr<Device> opened = Device::Cpu();
  const Device* const same = opened.get();
  const auto device = OpenDevice(options, contract, {.number = 3, .device = std::move(opened)});
  REQUIRE_OK(device);
  CHECK(device->get() == same);
  // This test's program has no GPU to open.
  CHECK(!OpenDevice(options, contract, {.number = 2, .device = Device::Cpu()}).ok());
  // A configuration may have changed since.
  const auto other =
      OpenDevice({.device = DeviceChoice::kCpu}, contract, {.number = 3, .device = Device::Cpu()});
  REQUIRE_OK(other);
  CHECK(!OpenGpuEarly(options, 0).ok());
  const auto none = OpenGpuEarly({.device = DeviceChoice::kCpu}, 0);
  REQUIRE_OK(none);
  CHECK(none->device == nullptr);
}

TEST_CASE("a GPU's state has a way through host memory wherever a start may have to read it") {
  const auto copies = [](const std::string& flag, DeviceKind device) {
    const auto options =
        LoadOptions({"--data=a.txt", "--token-cache-dir=/c", flag},
                    [](const std::string&) { return std::optional<std::string>(); });
    REQUIRE_OK(options);
    return MakeEngineOptions(**options, Layout{}, /*rank=*/0, device).copies_for_checkpoints;
  };
  CHECK_FALSE(copies("--steps=5", DeviceKind::kCuda));
  for (const char* const flag : {"--replicate-every=5", "--resume=/tmp"}) {
    INFO(flag);
    CHECK(copies(flag, DeviceKind::kCuda));
    CHECK_FALSE(copies(flag, DeviceKind::kCpu));
  }
}

class OlderGpu final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  bool multiplies_float8() const override { return false; }
};

TEST_CASE("a GPU without products of 8-bit floats is refused where the precision is fp8") {
  const std::unique_ptr<Device> cpu = Device::Cpu();
  const OlderGpu older(*cpu);
  CHECK_OK(CheckFloat8({.float8 = true}, *cpu));
  CHECK_OK(CheckFloat8({}, older));
  CHECK_STATUS(CheckFloat8({.float8 = true}, older), absl::StatusCode::kFailedPrecondition,
               "precision fp8 needs a GPU of compute capability 8.9 or later");
}

// The tensors that decay on the two ranks of a pipeline, of those in `names`.
std::set<std::string> Decayed(std::vector<std::string> flags, const std::set<std::string>& names) {
  flags.insert(flags.end(), {"--data=a.txt", "--layers=2", "--pp-size=2", "--token-cache-dir=/c"});
  const auto options =
      LoadOptions(flags, [](const std::string&) { return std::optional<std::string>(); });
  REQUIRE_OK(options);
  const std::unique_ptr<Device> device = Device::Cpu();
  std::set<std::string> found;
  std::set<std::string> decayed;
  for (const int rank : {0, 1}) {
    const EngineOptions engine =
        MakeEngineOptions(**options, Layout{.pp = 2}, rank, DeviceKind::kCpu);
    CommunicatorSet communicators = PlannedCommunicators(engine.layout, rank);
    const EngineParts parts(engine, StepPlans(engine), communicators, *device);
    for (const PlacedParameter& parameter : parts.store.placement().parameters) {
      if (!names.contains(parameter.name)) continue;
      CHECK((found.insert(parameter.name).second ||
             parameter.decayed == decayed.contains(parameter.name)));
      if (parameter.decayed) decayed.insert(parameter.name);
    }
  }
  CHECK(found == names);
  return decayed;
}

TEST_CASE("weight decay applies to matrices, and by flags not to tables, or to vectors too") {
  using Names = std::set<std::string>;
  const std::string table = "model.embed_tokens.weight";
  const std::string head = "lm_head.weight";
  const std::string matrix = "model.layers.1.mlp.down_proj.weight";
  const std::string norm = "model.layers.1.input_layernorm.weight";
  const std::string last_norm = "model.norm.weight";
  const Names all = {table, head, matrix, norm, last_norm};
  CHECK(Decayed({}, all) == Names{table, head, matrix});
  CHECK(Decayed({"--decay-embeddings=false"}, all) == Names{head, matrix});
  CHECK(Decayed({"--decay-norms-and-biases"}, all) == all);
  const Names of_tied = {table, matrix, norm};
  CHECK(Decayed({"--tied-embeddings"}, of_tied) == Names{table, matrix});
  CHECK(Decayed({"--tied-embeddings", "--decay-embeddings=false"}, of_tied) == Names{matrix});
  const Names of_gpt2 = {"transformer.wpe.weight", "transformer.h.0.attn.c_attn.weight",
                         "transformer.h.0.attn.c_attn.bias"};
  CHECK(Decayed({"--model=gpt2-tiny", "--decay-embeddings=false"}, of_gpt2) ==
        Names{"transformer.h.0.attn.c_attn.weight"});
  CHECK(Decayed({"--model=gpt2-tiny", "--decay-norms-and-biases"}, of_gpt2) == of_gpt2);
  // A router's bias balances the experts.
  CHECK(Decayed({"--model=deepseek-tiny", "--decay-norms-and-biases"},
                {norm, "model.layers.1.mlp.gate.e_score_correction_bias"}) == Names{norm});
}

}  // namespace
}  // namespace convene::worker
