// On a GPU: training through graphs gives the bits of training op by op.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

// Odd, so that both gradient buffers meet the one activation slot in turns.
constexpr int kMicrobatches = 3;
constexpr int kRows = 2;
constexpr int kSequenceLength = 128;
constexpr int kSteps = 5;

class CountingDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream& stream,
                                                 absl::FunctionRef<absl::Status()> work) override {
    ++captures;
    return ForwardingDevice::Capture(stream, work);
  }
  void Launch(Graph& graph, Stream& stream) override {
    ++launches;
    ForwardingDevice::Launch(graph, stream);
  }
  int captures = 0;
  int launches = 0;
};

// Heads that cuDNN takes too.
ModelConfig SmallModel() {
  return {.layers = 2,
          .hidden_size = 128,
          .ffn_size = 384,
          .heads = 2,
          .kv_heads = 1,
          .head_size = 64,
          .vocabulary_size = 256,
          .tied_embeddings = true};
}

struct Trained {
  std::vector<double> losses;
  std::vector<double> validation_losses;  // one after each step
  std::vector<double> norms;
  std::vector<char> weights;
  int captures = 0;
  int launches = 0;
};

Trained Train(Device& gpu, DType dtype, bool float8, Recompute recompute, bool cuda_graphs) {
  CountingDevice device(gpu);
  CommunicatorSet communicators = SoloCommunicators();
  const auto engine = Engine::Create({.model = SmallModel(),
                                      .seed = 5,
                                      .dtype = dtype,
                                      .float8 = float8,
                                      .recompute = recompute,
                                      .deterministic = true,
                                      .micro_batch_size = kRows,
                                      .sequence_length = kSequenceLength,
                                      .microbatches = kMicrobatches,
                                      .cuda_graphs = cuda_graphs},
                                     communicators, device);
  REQUIRE_OK(engine);
  Trained trained;
  std::vector<int32_t> inputs(size_t{kMicrobatches} * kRows * kSequenceLength);
  std::vector<int32_t> targets(inputs.size());
  uint32_t random = 1;
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      random = random * 1664525 + 1013904223;
      inputs[i] = static_cast<int32_t>(random >> 24);
      targets[i] = i % 7 == 0 ? -1 : inputs[i] / 2;
    }
    const TokenBatch batch{
        inputs.data(), targets.data(),
        std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; })};
    const auto result =
        TrainStep(**engine, batch, {.learning_rate = 1e-3, .weight_decay = 0.1, .step = step});
    REQUIRE_OK(result);
    trained.losses.push_back(result->loss);
    trained.norms.push_back(result->grad_norm);
    const auto validation = (*engine)->ForwardLoss(batch, kMicrobatches);
    REQUIRE_OK(validation);
    trained.validation_losses.push_back(validation->loss);
  }
  REQUIRE_OK(gpu.Synchronize(absl::Seconds(60)));
  const ConstElements weights = (*engine)->parameters();
  trained.weights.resize(weights.size_bytes());
  gpu.Copy(weights.data, trained.weights.data(), trained.weights.size(), gpu.compute());
  trained.captures = device.captures;
  trained.launches = device.launches;
  return trained;
}

TEST_CASE("training through graphs gives the bits of training op by op", "[slow][bf16]") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const std::unique_ptr<Device> gpu = testing::MakeTestDevice();
  const DType dtype = GENERATE(DType::kBFloat16, DType::kFloat32);
  const bool float8 = GENERATE(false, true);
  const Recompute recompute = GENERATE(Recompute::kNone, Recompute::kFull);
  CAPTURE(DTypeName(dtype), float8, recompute);
  const Trained plain = Train(*gpu, dtype, float8, recompute, /*cuda_graphs=*/false);
  const Trained graphed = Train(*gpu, dtype, float8, recompute, /*cuda_graphs=*/true);
  CHECK(plain.captures == 0);
  CHECK(graphed.captures == 2 * kMicrobatches);
  CHECK(graphed.launches == 2 * kMicrobatches * (kSteps - 1));
  CHECK(plain.losses.front() > plain.losses.back());
  CHECK(graphed.losses == plain.losses);
  CHECK(graphed.validation_losses == plain.validation_losses);
  CHECK(graphed.norms == plain.norms);
  CHECK(graphed.weights == plain.weights);
}

}  // namespace
}  // namespace convene::worker
