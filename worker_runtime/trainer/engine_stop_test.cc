// When a rank's wish to stop is heard: in the step that runs when it comes, also where a device
// works through its queue long after it was filled.
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/small_model.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

constexpr int kSequenceLength = 16;

// Ops are done when they are called; copies, as on a GPU, when the queue comes to them: when
// somebody has waited `waits_needed` times.
class LateDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  void Copy(const void* from, void* to, size_t bytes, Stream& stream) override {
    if (waits_needed == 0) return ForwardingDevice::Copy(from, to, bytes, stream);
    queue_.push_back([=, this, &stream] { ForwardingDevice::Copy(from, to, bytes, stream); });
  }

  absl::Status Wait(Event& /*event*/, absl::Duration timeout) override {
    if (on_wait) on_wait(timeout);
    if (++waits < waits_needed) return absl::DeadlineExceededError("still at work");
    for (const auto& work : std::exchange(queue_, {})) work();
    return absl::OkStatus();
  }

  int waits_needed = 0;  // 0: as soon as they are called
  int waits = 0;
  std::function<void(absl::Duration)> on_wait;

 private:
  std::vector<std::function<void()>> queue_;
};

class Trainer {
 public:
  explicit Trainer(absl::Duration timeout = absl::Minutes(1)) {
    auto engine = Engine::Create({.model = testing::SmallModel(),
                                  .sequence_length = kSequenceLength,
                                  .timeout = timeout,
                                  .stop_wanted = [this] { return stop_wanted; }},
                                 set_, device);
    REQUIRE_OK(engine);
    engine_ = *std::move(engine);
  }

  absl::StatusOr<StepResult> Train() {
    return TrainStep(*engine_, batch(), {.learning_rate = 1e-3, .step = ++step_});
  }
  absl::StatusOr<ForwardResult> Validate() { return engine_->ForwardLoss(batch(), 1); }

  const std::unique_ptr<Device> cpu = Device::Cpu();
  LateDevice device{*cpu};
  bool stop_wanted = false;

 private:
  TokenBatch batch() const { return {tokens_.data(), tokens_.data(), kSequenceLength}; }

  const std::vector<int32_t> tokens_ = std::vector<int32_t>(kSequenceLength, 65);
  CommunicatorSet set_ = SoloCommunicators();
  std::unique_ptr<Engine> engine_;
  int step_ = 0;
};

bool Stops(const absl::StatusOr<StepResult>& result) {
  REQUIRE_OK(result);
  return result->stop_requested;
}

TEST_CASE("a stop that is wanted before a step is the step's result, and not for ever") {
  Trainer trainer;
  CHECK_FALSE(Stops(trainer.Train()));
  trainer.stop_wanted = true;
  CHECK(Stops(trainer.Train()));
  trainer.stop_wanted = false;
  CHECK_FALSE(Stops(trainer.Train()));
}

TEST_CASE("a stop that is wanted while the device works on a queued step is that step's result") {
  Trainer trainer;
  trainer.device.waits_needed = 5;
  CHECK_FALSE(Stops(trainer.Train()));
  for (const int wanted_at : {1, 4}) {
    trainer.device.waits = 0;
    trainer.stop_wanted = false;
    trainer.device.on_wait = [&](absl::Duration /*timeout*/) {
      trainer.stop_wanted = trainer.device.waits + 1 >= wanted_at;
    };
    CHECK(Stops(trainer.Train()));
    CHECK(trainer.device.waits == 5);
  }
}

TEST_CASE("one rank's wish to stop is every rank's result, in the same step") {
  const Layout layout = {.pp = 2, .dp = 2};
  if (!testing::HasPlacesOrSkips(layout.world_size())) return;
  const auto places = testing::Places::Make(layout);
  REQUIRE_OK(places);
  std::vector<std::vector<bool>> stops(layout.world_size());
  const auto train = [&](int rank) -> absl::Status {
    testing::Place& place = (**places)[rank];
    int step = 0;
    CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             Engine::Create({.model = testing::SmallModel(),
                                             .layout = layout,
                                             .rank = rank,
                                             .sequence_length = kSequenceLength,
                                             .stop_wanted = [&] { return rank == 1 && step == 2; },
                                             .collective_memory = place.collective_memory.get()},
                                            place.communicators, *place.device));
    const std::vector<int32_t> tokens(kSequenceLength, 65);
    while (++step <= 3) {
      CONVENE_ASSIGN_OR_RETURN(
          const StepResult result,
          TrainStep(*engine, {tokens.data(), tokens.data(), 2 * kSequenceLength},
                    {.learning_rate = 1e-3, .step = step}));
      stops[rank].push_back(result.stop_requested);
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : (*places)->OnEveryRank(train)) CHECK_OK(status);
  for (const std::vector<bool>& of_rank : stops) {
    CHECK(of_rank == std::vector<bool>{false, true, false});
  }
}

TEST_CASE("a stop that is wanted during a validation is heard in its batch") {
  Trainer trainer;
  REQUIRE_OK(trainer.Validate());
  CHECK_FALSE(trainer.Validate()->stop_requested);
  trainer.device.waits = 0;
  trainer.device.waits_needed = 2;
  trainer.device.on_wait = [&](absl::Duration /*timeout*/) { trainer.stop_wanted = true; };
  const auto result = trainer.Validate();
  REQUIRE_OK(result);
  CHECK(result->stop_requested);
}

TEST_CASE("a device that never finishes is waited for as long as allowed, and the text says so") {
  Trainer trainer(/*timeout=*/absl::Milliseconds(70));
  absl::Duration waited;
  trainer.device.waits_needed = 1 << 30;
  trainer.device.on_wait = [&](absl::Duration timeout) { waited += timeout; };
  CHECK_STATUS(trainer.Train().status(), absl::StatusCode::kDeadlineExceeded,
               "has not finished its queued work within 70ms");
  CHECK(waited == absl::Milliseconds(70));
}

}  // namespace
}  // namespace convene::worker
