#include "worker_runtime/model/loss_head.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

constexpr int kRows = 75;
constexpr int kHidden = 24;
constexpr int kVocabulary = 50;

TEST_CASE("chunks hold what fits, are of nearly one size, and never none") {
  CHECK(LossChunkRows(100, 1000, 4, 1 << 20) == 100);      // all of it fits
  CHECK(LossChunkRows(1000, 1000, 4, 4000 * 256) == 256);  // 4 chunks: 250 rows, rounded up
  CHECK(LossChunkRows(1000, 1000, 4, 4000 * 250) == 208);  // 250 fit, 240 are a multiple: 5 chunks
  CHECK(LossChunkRows(513, 1000, 4, 4000 * 512) == 272);   // not 512 and a single one
  CHECK(LossChunkRows(1000, 1 << 20, 4, 1) == 16);         // a row larger than the limit
  CHECK(LossChunkRows(5, 1 << 20, 4, 1) == 5);
}

std::vector<float> Numbers(size_t count, double step) {
  std::vector<float> numbers;
  for (size_t i = 0; i < count; ++i) numbers.push_back(static_cast<float>(std::sin(step * i + 1)));
  return numbers;
}

struct Outcome {
  double loss = 0;
  std::vector<float> gradient, norm_gradient, head_gradient;
};

// Two tensors, a norm and a head, and where their gradients go.
class HeadStore final : public UnitStore {
 public:
  explicit HeadStore(Device& device)
      : norm_gradient(std::vector<float>(kHidden, NAN), device),
        head_gradient(std::vector<float>(kVocabulary * kHidden, NAN), device),
        norm_(Numbers(kHidden, 0.7), device),
        head_(Numbers(kVocabulary * kHidden, 0.37), device) {}

  absl::StatusOr<absl::Span<const void* const>> Acquire(int /*unit*/) override { return weights_; }
  WeightGradient Gradient(int /*unit*/, int tensor, bool is_first) override {
    return {.data = (tensor == kHead ? head_gradient : norm_gradient).data(), .adds = !is_first};
  }
  absl::Status GradientsDone(int /*unit*/, bool /*is_last*/) override { return absl::OkStatus(); }

  // They are overwritten: their old content must not show.
  const DeviceArray<float> norm_gradient, head_gradient;

 private:
  const DeviceArray<float> norm_, head_;
  const std::vector<const void*> weights_ = {norm_.data(), head_.data()};
};

Outcome Run(size_t logits_bytes, float cap = 0) {
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  const CommunicatorSet communicators = SoloCommunicators();
  Arena arena("test", device->memory());
  LossHead<float> head({.rows = kRows,
                        .residual_rows = kRows,
                        .hidden = kHidden,
                        .vocabulary = {0, kVocabulary},
                        .norm_epsilon = 1e-5f,
                        .logit_cap = cap,
                        .logits_bytes = logits_bytes},
                       /*slots=*/1, device->kind(), arena);
  REQUIRE_OK(arena.Build());
  const DeviceArray<float> residual(Numbers(kRows * kHidden, 0.11), *device);
  const DeviceArray<float> delta(Numbers(kRows * kHidden, 0.23), *device);
  std::vector<int32_t> target_of_row;
  for (int row = 0; row < kRows; ++row) target_of_row.push_back(row % 9 == 4 ? -1 : row * 7 % 50);
  const DeviceArray<int32_t> targets(target_of_row, *device);
  HeadStore store(*device);
  const DeviceArray<float> sum(std::vector<float>(kRows * kHidden), *device);
  const DeviceArray<float> gradient(std::vector<float>(kRows * kHidden), *device);
  const DeviceArray<float> scale({0.02f}, *device);
  const DeviceArray<double> loss({0.0}, *device);
  ChunkedRows rows(kRows, kHidden, /*is_split=*/false, *communicators.tp);
  const UnitSurroundings<float> around = {.device = device.get(), .rows = &rows};
  const auto weights = store.Acquire(0);
  REQUIRE_OK(weights);
  const std::vector<int> places = {kFinalNorm, kHead};  // by role
  const Pass<float> pass = {.around = around,
                            .store = store,
                            .unit = 0,
                            .slot = 0,
                            .deferred = -1,
                            .head = 0,
                            .is_first = true,
                            .is_first_weight = true,
                            .input = sum.data(),
                            .inputs = nullptr,
                            .targets = targets.data(),
                            .gradient_scale = scale.data(),
                            .loss_sum = loss.data(),
                            .documents = {},
                            .stream = device->compute(),
                            .places = places,
                            .weights = *weights};
  Flow<float> flow = {.residual = residual.data(), .delta = delta.data()};
  REQUIRE_OK(head.Forward(pass, nullptr, flow));
  REQUIRE_OK(head.Backward(pass, gradient.data()));
  return {loss.Fetch()[0], gradient.Fetch(), store.norm_gradient.Fetch(),
          store.head_gradient.Fetch()};
}

void CheckClose(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - expected[i], 2);
    size += std::pow(double{expected[i]}, 2);
  }
  REQUIRE(size > 0);
  // A CPU's products of few rows add in another order than those of more rows.
  CHECK(std::sqrt(difference) <= 3e-6 * std::sqrt(size));
}

TEST_CASE("many chunks give the loss and the gradients of one, with a cap of logits too") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const float cap : {0.0f, 0.5f}) {
    CAPTURE(cap);
    const Outcome whole = Run(size_t{1} << 20, cap);
    // 32, 32 and 11 rows; with a cap 16 at a time.
    const Outcome chunked = Run(kVocabulary * sizeof(float) * 32, cap);
    CHECK(whole.loss > 0);
    CHECK(chunked.loss == Approx(whole.loss).epsilon(1e-7));
    CheckClose(chunked.gradient, whole.gradient);
    CheckClose(chunked.norm_gradient, whole.norm_gradient);
    CheckClose(chunked.head_gradient, whole.head_gradient);
  }
}

}  // namespace
}  // namespace convene::worker
