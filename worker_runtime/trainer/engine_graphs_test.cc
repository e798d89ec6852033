// The passes of an engine that go through graphs. A CPU has none: the device here counts who asks,
// and refuses.
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/copy_parameters.h"
#include "worker_runtime/trainer/testing/small_model.h"
#include "worker_runtime/trainer/testing/train_step.h"

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

// Counts captures, and what the host waits for meanwhile. On a CPU what is captured runs at once,
// and its launch is the one of the same step.
class CapturingDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  absl::Status Wait(Event& event, absl::Duration timeout) override {
    waits_in_captures += captures_now_;
    return ForwardingDevice::Wait(event, timeout);
  }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream& stream,
                                                 absl::FunctionRef<absl::Status()> work) override {
    ++captures;
    ++captures_now_;
    const auto end = absl::MakeCleanup([&] { --captures_now_; });
    if (kind() == DeviceKind::kCuda) return ForwardingDevice::Capture(stream, work);
    CONVENE_RETURN_IF_ERROR(work());
    return std::make_unique<Graph>();
  }
  void Launch(Graph& graph, Stream& stream) override {
    ++launches;
    if (kind() == DeviceKind::kCuda) ForwardingDevice::Launch(graph, stream);
  }
  bool is_capturing() const { return captures_now_ > 0; }

  int captures = 0;
  int launches = 0;
  int waits_in_captures = 0;
  int calls_in_captures = 0;  // of collectives

 private:
  int captures_now_ = 0;
};

class CountingCollective final : public testing::ForwardingCollective {
 public:
  CountingCollective(std::unique_ptr<Collective> base, CapturingDevice& device)
      : ForwardingCollective(std::move(base)), device_(device) {}
  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    if (device_.is_capturing()) ++device_.calls_in_captures;
    return ForwardingCollective::Call(call, stream);
  }

 private:
  CapturingDevice& device_;
};

class Trainer {
 public:
  explicit Trainer(bool cuda_graphs)
      : tokens_(kMicrobatches * kSequenceLength, 65), set_(SoloCommunicators()) {
    engine_ = Engine::Create({.model = testing::SmallModel(),
                              .sequence_length = kSequenceLength,
                              .microbatches = kMicrobatches,
                              .cuda_graphs = cuda_graphs},
                             set_, device_);
  }

  void Train(int step) {
    REQUIRE_OK(engine_);
    REQUIRE_OK(TrainStep(**engine_, batch(), {.learning_rate = 1e-3, .step = step}));
  }
  void Validate() { REQUIRE_OK((*engine_)->ForwardLoss(batch(), kMicrobatches)); }
  int captures() const { return device_.captures; }
  std::string Weights() const {
    const ConstElements parameters = (*engine_)->parameters();
    return {static_cast<const char*>(parameters.data), parameters.size_bytes()};
  }

 private:
  TokenBatch batch() const {
    return {tokens_.data(), tokens_.data(), static_cast<int64_t>(tokens_.size())};
  }

  const std::vector<int32_t> tokens_;
  const std::unique_ptr<Device> cpu_ = Device::Cpu();
  RefusingDevice device_{*cpu_};
  CommunicatorSet set_;
  absl::StatusOr<std::unique_ptr<Engine>> engine_;
};

// The outcome on one rank of two. A step has one micro batch: its passes are the first and the
// last.
struct DataParallel {
  std::vector<char> weights;
  int captures = 0;
  int launches = 0;
  int calls_in_captures = 0;
};

absl::Status TrainDataParallel(testing::Place& place, int rank, int steps, bool float8,
                               bool cuda_graphs, DataParallel& trained) {
  CapturingDevice device(*place.device);
  for (std::unique_ptr<Collective> CommunicatorSet::*group :
       {&CommunicatorSet::dp, &CommunicatorSet::dp_gather, &CommunicatorSet::world}) {
    std::unique_ptr<Collective>& collective = place.communicators.*group;
    collective = std::make_unique<CountingCollective>(std::move(collective), device);
  }
  EngineOptions options = {.model = testing::SmallModel(),
                           .layout = {.dp = 2},
                           .rank = rank,
                           .float8 = float8,
                           .deterministic = true,
                           .sequence_length = kSequenceLength,
                           .microbatches = 1,
                           .cuda_graphs = cuda_graphs};
  options.model.ffn_size = 32;  // 8-bit floats take multiples of 16
  options.collective_memory = place.collective_memory.get();
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           Engine::Create(options, place.communicators, device));
  for (int step = 1; step <= steps; ++step) {
    const std::vector<int32_t> tokens(kSequenceLength, 65 + step + 10 * rank);
    const TokenBatch batch{tokens.data(), tokens.data(), 2 * kSequenceLength};
    CONVENE_RETURN_IF_ERROR(
        TrainStep(*engine, batch, {.learning_rate = 1e-3, .step = step}).status());
  }
  CONVENE_ASSIGN_OR_RETURN(trained.weights, CopyParameters(*engine, device));
  trained.captures = device.captures;
  trained.launches = device.launches;
  trained.calls_in_captures = device.calls_in_captures;
  return absl::OkStatus();
}

TEST_CASE("beside data-parallel ranks the units of a step's only passes are graphs") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const int steps = testing::OnGpus() ? 4 : 2;  // as below
  const bool float8 = GENERATE(false, true);
  CAPTURE(float8);
  const auto train = [steps, float8](bool cuda_graphs) {
    const auto places = testing::Places::Make({.dp = 2});
    REQUIRE_OK(places);
    std::vector<DataParallel> trained(2);
    for (const absl::Status& end : (*places)->OnEveryRank([&](int rank) {
           return TrainDataParallel((**places)[rank], rank, steps, float8, cuda_graphs,
                                    trained[rank]);
         })) {
      REQUIRE_OK(end);
    }
    return trained;
  };
  const std::vector<DataParallel> plain = train(false);
  const std::vector<DataParallel> graphed = train(true);
  const int units = testing::SmallModel().layers + 2;
  for (int rank = 0; rank < 2; ++rank) {
    CHECK((graphed[rank].weights == plain[rank].weights));
    CHECK(plain[rank].captures == 0);
    CHECK(graphed[rank].captures == 2 * units);
    CHECK(graphed[rank].launches == (steps - 1) * 2 * units);
    CHECK(graphed[rank].calls_in_captures == 0);
  }
}

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

// A graph that was captured while a pass waited for the host would wait no more in later steps, and
// so keep weights of the step before.
TEST_CASE(
    "a pass that takes over the host's update is cut into units, the passes between are not") {
  if (!testing::HasPlacesOrSkips(1)) return;
  constexpr int kThree = 3;
  // The first one captures nothing. A later one can launch what an earlier one captured on GPUs
  // alone.
  const int steps = testing::OnGpus() ? 4 : 2;
  const auto train = [steps](Device& device, bool cuda_graphs) {
    CommunicatorSet set = SoloCommunicators();
    const auto engine = Engine::Create({.model = testing::SmallModel(),
                                        .deterministic = true,
                                        .sequence_length = kSequenceLength,
                                        .microbatches = kThree,
                                        .offload_optimizer = true,
                                        .cuda_graphs = cuda_graphs},
                                       set, device);
    REQUIRE_OK(engine);
    const std::vector<int32_t> tokens(kThree * kSequenceLength, 65);
    const TokenBatch batch{tokens.data(), tokens.data(), static_cast<int64_t>(tokens.size())};
    for (int step = 1; step <= steps; ++step) {
      REQUIRE_OK(TrainStep(**engine, batch, {.learning_rate = 1e-3, .step = step}));
    }
    const auto weights = CopyParameters(**engine, device);
    REQUIRE_OK(weights);
    return *weights;
  };
  const std::unique_ptr<Device> plain = testing::MakeTestDevice();
  CapturingDevice device(*plain);
  CHECK((train(device, /*cuda_graphs=*/true) == train(*plain, /*cuda_graphs=*/false)));
  // Of the first forward and the last backward pass each unit.
  const int units = testing::SmallModel().layers + 2;
  CHECK(device.captures == 2 * kThree - 2 + 2 * units);
  CHECK(device.launches == (steps - 1) * device.captures);
  CHECK(device.waits_in_captures == 0);
}

}  // namespace
}  // namespace convene::worker
