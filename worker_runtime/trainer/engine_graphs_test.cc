// Which passes of an engine go through graphs. A CPU has none: the device here counts who asks, and
// refuses.
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/forwarding_device.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {
namespace {

constexpr int kMicrobatches = 2;
constexpr int kSequenceLength = 16;

class RefusingDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& /*stream*/, absl::FunctionRef<absl::Status()> /*work*/) override {
    ++captures;
    return absl::UnimplementedError("no graphs here");
  }
  int captures = 0;
};

class Trainer {
 public:
  explicit Trainer(bool cuda_graphs) {
    const auto model = NamedModel("llama-tiny");
    REQUIRE_OK(model);
    auto engine = Engine::Create({.model = *model,
                                  .sequence_length = kSequenceLength,
                                  .microbatches = kMicrobatches,
                                  .cuda_graphs = cuda_graphs},
                                 sets_[0], device_);
    REQUIRE_OK(engine);
    engine_ = *std::move(engine);
  }

  void Train(int step) {
    REQUIRE_OK(engine_->TrainStep(batch(), {.learning_rate = 1e-3, .step = step}, false));
  }
  void Validate() { REQUIRE_OK(engine_->ForwardLoss(batch(), kMicrobatches)); }
  int captures() const { return device_.captures; }
  std::string Weights() const {
    const ConstElements parameters = engine_->parameters();
    return {static_cast<const char*>(parameters.data), parameters.size_bytes()};
  }

 private:
  TokenBatch batch() const {
    return {tokens_.data(), tokens_.data(), 1.0f / static_cast<float>(tokens_.size())};
  }

  const std::vector<int32_t> tokens_ = std::vector<int32_t>(kMicrobatches * kSequenceLength, 65);
  const std::unique_ptr<Device> cpu_ = Device::Cpu();
  RefusingDevice device_{*cpu_};
  std::vector<CommunicatorSet> sets_ = LoopbackCommunicators({});
  std::unique_ptr<Engine> engine_;
};

TEST_CASE("the second training step asks for graphs, validation does not") {
  Trainer trainer(/*cuda_graphs=*/true);
  trainer.Train(1);
  trainer.Validate();
  trainer.Validate();
  CHECK(trainer.captures() == 0);
  trainer.Train(2);
  CHECK(trainer.captures() == 1);  // refused: not asked again
  trainer.Train(3);
  CHECK(trainer.captures() == 1);
}

TEST_CASE("nobody asks for graphs where the option is off") {
  Trainer trainer(/*cuda_graphs=*/false);
  for (int step = 1; step <= 3; ++step) trainer.Train(step);
  CHECK(trainer.captures() == 0);
}

TEST_CASE("an engine whose graphs were refused trains as one without") {
  Trainer with(/*cuda_graphs=*/true);
  Trainer without(/*cuda_graphs=*/false);
  for (int step = 1; step <= 3; ++step) {
    with.Train(step);
    without.Train(step);
  }
  CHECK(with.Weights() == without.Weights());
}

}  // namespace
}  // namespace convene::worker
