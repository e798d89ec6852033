// A step must not allocate: memory that grows at step 10,000 ends a run of weeks. Counts every
// operator new and delete of the process.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace {
std::atomic<int64_t> g_allocations{0};
std::atomic<int64_t> g_alive{0};
}  // namespace

void* operator new(size_t size) {
  ++g_allocations;
  ++g_alive;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) --g_alive;
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

namespace convene::worker {
namespace {

TEST_CASE("after the first, a step allocates nothing") {
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  const bool packed = GENERATE(false, true);
  const bool offloads = GENERATE(false, true);  // and so has shards, on one rank too
  const char* const named = GENERATE("llama-tiny", "qwen3-tiny", "gpt2-tiny", "deepseek-tiny");
  CAPTURE(dtype, packed, offloads, named);
  constexpr int kMicrobatches = 2, kRows = 2, kSequenceLength = 16;
  CommunicatorSet communicators = SoloCommunicators();
  const auto model = NamedModel(named);
  REQUIRE_OK(model);
  const std::unique_ptr<Device> device = Device::Cpu();
  auto engine = Engine::Create({.model = *model,
                                .dtype = dtype,
                                .packed_documents = packed,
                                .micro_batch_size = kRows,
                                .sequence_length = kSequenceLength,
                                .microbatches = kMicrobatches,
                                .zero_stage = offloads ? 3 : 1,
                                .offload_optimizer = offloads,
                                .offload_parameters = offloads},
                               communicators, *device);
  REQUIRE_OK(engine);
  const std::vector<int32_t> tokens(kMicrobatches * kRows * kSequenceLength, 65);
  const std::vector<int32_t> begins(tokens.size(), 0);
  const TokenBatch batch{tokens.data(), tokens.data(), static_cast<int64_t>(tokens.size()),
                         packed ? begins.data() : nullptr};
  // The first step may build what stays: oneDNN's kernels, the communicators' scratch.
  REQUIRE(TrainStep(**engine, batch, {.learning_rate = 1e-3, .step = 1}).ok());
  const int64_t before = g_allocations, alive_before = g_alive;
  const bool ok = TrainStep(**engine, batch, {.learning_rate = 1e-3, .step = 2}).ok();
  const int64_t allocations = g_allocations - before;
  CHECK(ok);
  CHECK(g_alive == alive_before);
  // Where the processor multiplies bf16, oneDNN's primitive does, and makes a map of its arguments
  // for each call.
  const bool has_maps = dtype == DType::kBFloat16 && __builtin_cpu_supports("avx512bf16");
  if (!has_maps) CHECK(allocations == 0);
}

}  // namespace
}  // namespace convene::worker
