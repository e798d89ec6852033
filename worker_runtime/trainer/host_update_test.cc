// The host updates an offloaded state beside what comes next: whatever that is, it finds what an
// update on the device would have left.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/copy_parameters.h"
#include "worker_runtime/trainer/testing/small_model.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

constexpr int kSequenceLength = 16;

// An update by the host does not begin until somebody waits.
class LateHost final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Stream& host() override {
    Stream& stream = ForwardingDevice::host();
    if (!is_held_.exchange(true)) RunIn(stream, [this] { is_held_.wait(true); });
    return stream;
  }
  absl::Status Wait(Event& event, absl::Duration timeout) override {
    LetGo();
    return ForwardingDevice::Wait(event, timeout);
  }
  absl::Status Synchronize(absl::Duration timeout) override {
    LetGo();
    return ForwardingDevice::Synchronize(timeout);
  }

 private:
  void LetGo() {
    is_held_ = false;
    is_held_.notify_all();
  }

  std::atomic<bool> is_held_ = false;
};

// One process that trains.
class Trainer {
 public:
  Trainer(DType dtype, bool offloads, bool overlaps) {
    SetThreads(plain_->host(), offloads ? 3 : 1);  // no bit depends on it
    auto engine = Engine::Create({.model = testing::SmallModel(),
                                  .seed = 3,
                                  .dtype = dtype,
                                  .deterministic = true,
                                  .overlap_communication = overlaps,
                                  .sequence_length = kSequenceLength,
                                  .offload_optimizer = offloads},
                                 set_, device_);
    REQUIRE_OK(engine);
    engine_ = *std::move(engine);
  }

  Engine& engine() { return *engine_; }
  void SetAllWeights(float value) {
    REQUIRE_OK(engine_->optimizer().SetWeights(
        WeightSet::kAll, [&](const ParameterSlice&, int64_t, absl::Span<float> values) {
          std::fill(values.begin(), values.end(), value);
        }));
  }
  StepResult Step(int64_t counted_targets = kSequenceLength, const StepLimits& limits = {}) {
    const auto result = TrainStep(*engine_, Batch(counted_targets),
                                  {.learning_rate = 1e-3, .step = ++step_}, limits);
    REQUIRE_OK(result);
    return *result;
  }
  double Validate() {
    const auto result = engine_->ForwardLoss(Batch(kSequenceLength), 1);
    REQUIRE_OK(result);
    return result->loss;
  }
  std::vector<char> Parameters() {
    const auto parameters = CopyParameters(*engine_, device_);
    REQUIRE_OK(parameters);
    return *parameters;
  }
  // A checkpoint's content, tensor by tensor.
  std::vector<std::vector<float>> State() {
    const auto pieces = engine_->optimizer().PiecesToWrite();
    REQUIRE_OK(pieces);
    std::vector<std::vector<float>> state;
    for (const PieceToWrite& piece : *pieces) {
      const absl::Span<const float> data = piece.data.As<float>();
      state.emplace_back(data.begin(), data.end());
    }
    return state;
  }

 private:
  TokenBatch Batch(int64_t counted_targets) const {
    return {tokens_.data(), counted_targets > 0 ? tokens_.data() : uncounted_.data(),
            counted_targets};
  }

  const std::vector<int32_t> tokens_ = std::vector<int32_t>(kSequenceLength, 65);
  const std::vector<int32_t> uncounted_ = std::vector<int32_t>(kSequenceLength, -1);
  const std::unique_ptr<Device> plain_ = testing::MakeTestDevice();
  LateHost device_{*plain_};
  CommunicatorSet set_ = SoloCommunicators();
  std::unique_ptr<Engine> engine_;
  int step_ = 0;
};

void CheckSame(Trainer& offloaded, Trainer& kept) {
  CHECK((offloaded.State() == kept.State()));  // Catch2 would print them
  CHECK((offloaded.Parameters() == kept.Parameters()));
}

TEST_CASE("what follows an update by the host finds the bits of one by the device") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool overlaps : {true, false}) {
      INFO(DTypeName(dtype) << (overlaps ? ", beside" : ", alone"));
      Trainer offloaded(dtype, /*offloads=*/true, overlaps);
      // A GPU's own update may round otherwise.
      Trainer kept(dtype, /*offloads=*/testing::OnGpus(), overlaps && !testing::OnGpus());
      const auto step = [&](int64_t counted_targets = kSequenceLength) {
        CHECK(offloaded.Step(counted_targets).loss == kept.Step(counted_targets).loss);
      };
      step();
      CheckSame(offloaded, kept);  // a checkpoint
      step();
      step();  // another step
      step(/*counted_targets=*/0);
      step();
      CHECK(offloaded.Validate() == kept.Validate());
      step();
      step(/*counted_targets=*/0);
      CheckSame(offloaded, kept);
      step();
      REQUIRE_OK(offloaded.engine().InitializeWeights());
      REQUIRE_OK(kept.engine().InitializeWeights());
      CheckSame(offloaded, kept);
    }
  }
}

// AdamW, before whose second bucket the host stands until the test lets it go on.
class LateSecondBucket final : public UpdateRule {
 public:
  const char* name() const override { return AdamWRule().name(); }
  absl::Span<const char* const> states() const override { return AdamWRule().states(); }
  Factors FactorsOf(const UpdateParameters& parameters) const override {
    return AdamWRule().FactorsOf(parameters);
  }
  void Update(const Piece& piece, Stream& stream) const override {
    if (++buckets_ == 2) RunIn(stream, [this] { goes_on_.wait(false); });
    AdamWRule().Update(piece, stream);
  }
  void GoOn() {
    goes_on_ = true;
    goes_on_.notify_all();
  }

 private:
  mutable int buckets_ = 0;
  std::atomic<bool> goes_on_ = false;
};

TEST_CASE("on every stage the first pass after a step waits for its own bucket's update alone") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const Layout layout = GENERATE(Layout{}, Layout{.pp = 2});
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  CommunicatorSet set = PlannedCommunicators(layout, layout.pp - 1);
  LateSecondBucket rule;
  const auto engine = Engine::Create({.model = testing::SmallModel(),
                                      .update_rule = &rule,
                                      .layout = layout,
                                      .rank = layout.pp - 1,
                                      .bucket_count_min = 1,
                                      .offload_optimizer = true,
                                      .timeout = absl::Seconds(5)},
                                     set, *device);
  REQUIRE_OK(engine);
  CHECK((*engine)->placement().buckets.size() > 2);
  RankOptimizers& optimizer = (*engine)->optimizer();
  CHECK_OK(optimizer.CopyGradients());
  CHECK_OK(device->Synchronize(absl::Seconds(60)));
  CHECK_OK(optimizer.UpdateOnHost(rule.FactorsOf({}), {1.0f, SkipReason::kNone}));
  CHECK_OK((*engine)->store().Acquire(0));
  rule.GoOn();
  CHECK_OK((*engine)->store().FinishUpdate());
}

TEST_CASE("a skipped step leaves an offloaded state as it was, be it the first or a later one") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Trainer trainer(dtype, /*offloads=*/true, /*overlaps=*/true);
    for (int turn = 0; turn < 2; ++turn) {
      INFO(DTypeName(dtype) << ", turn " << turn);
      trainer.SetAllWeights(std::numeric_limits<float>::infinity());
      const auto state = trainer.State();
      const auto parameters = trainer.Parameters();
      CHECK(trainer.Step().skipped);
      CHECK((trainer.State() == state));
      CHECK((trainer.Parameters() == parameters));
      trainer.SetAllWeights(0.01f);
      CHECK(!trainer.Step().skipped);
    }
  }
}

TEST_CASE("a loss or a gradient above its limit changes no weight, whoever updates") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const bool offloads : {false, true}) {
    INFO(offloads);
    Trainer trainer(DType::kFloat32, offloads, /*overlaps=*/true);
    const StepResult first = trainer.Step();
    const auto parameters = trainer.Parameters();
    const StepResult loss = trainer.Step(kSequenceLength, {.loss = first.loss / 2});
    CHECK(loss.skipped);
    CHECK(loss.why == SkipReason::kLossSpike);
    CHECK(loss.limits.loss == first.loss / 2);
    const StepResult gradient =
        trainer.Step(kSequenceLength, {.gradient_norm = loss.grad_norm * 0.99});
    CHECK(gradient.why == SkipReason::kGradientSpike);
    CHECK((trainer.Parameters() == parameters));
    const StepResult below = trainer.Step(
        kSequenceLength, {.loss = loss.loss * 1.01, .gradient_norm = loss.grad_norm * 1.01});
    CHECK(!below.skipped);
    CHECK((trainer.Parameters() != parameters));
  }
}

}  // namespace
}  // namespace convene::worker
