#include "worker_runtime/model/loss_head.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"

namespace convene::worker {
namespace {

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
  std::vector<float> gradient = std::vector<float>(kRows * kHidden);
  // The gradient is overwritten: its old content must not show.
  std::vector<float> norm_gradient = std::vector<float>(kHidden, NAN);
  std::vector<float> head_gradient = std::vector<float>(kVocabulary * kHidden, NAN);
};

Outcome Run(size_t logits_bytes) {
  const CommunicatorSet communicators = SoloCommunicators();
  Arena arena("test");
  LossHead<float> head({.rows = kRows,
                        .hidden = kHidden,
                        .vocabulary = {0, kVocabulary},
                        .norm_epsilon = 1e-5f,
                        .logits_bytes = logits_bytes},
                       DeviceKind::kCpu, *communicators.tp, arena);
  REQUIRE_OK(arena.Build());
  head.Bind();
  const std::vector<float> norm = Numbers(kHidden, 0.7);
  const std::vector<float> weights = Numbers(kVocabulary * kHidden, 0.37);
  const std::vector<float> residual = Numbers(kRows * kHidden, 0.11);
  const std::vector<float> delta = Numbers(kRows * kHidden, 0.23);
  std::vector<int32_t> targets;
  for (int row = 0; row < kRows; ++row) targets.push_back(row % 9 == 4 ? -1 : row * 7 % 50);
  std::vector<float> sum(kRows * kHidden), rms(kRows), inner(kRows * kHidden);
  Outcome outcome;
  const LossHead<float>::Weights all = {
      .norm = norm.data(),
      .head = weights.data(),
      .norm_gradient = {.data = outcome.norm_gradient.data(), .adds = false},
      .head_gradient = {.data = outcome.head_gradient.data(), .adds = false}};
  const float scale = 0.02f;
  Stream stream = Stream::Cpu();
  REQUIRE_OK(head.Forward(all, residual.data(), delta.data(), targets.data(), &scale,
                          {sum.data(), rms.data(), inner.data()}, &outcome.loss, stream));
  head.Backward(all, {sum.data(), rms.data(), inner.data()}, outcome.gradient.data(), stream);
  return outcome;
}

void CheckClose(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{actual[i]} - expected[i], 2);
    size += std::pow(double{expected[i]}, 2);
  }
  REQUIRE(size > 0);
  CHECK(std::sqrt(difference) <= 1e-6 * std::sqrt(size));
}

TEST_CASE("many chunks give the loss and the gradients of one") {
  const Outcome whole = Run(size_t{1} << 20);
  const Outcome chunked = Run(kVocabulary * sizeof(float) * 32);  // 32, 32 and 11 rows
  CHECK(whole.loss > 0);
  CHECK(chunked.loss == Approx(whole.loss).epsilon(1e-7));
  CheckClose(chunked.gradient, whole.gradient);
  CheckClose(chunked.norm_gradient, whole.norm_gradient);
  CheckClose(chunked.head_gradient, whole.head_gradient);
}

}  // namespace
}  // namespace convene::worker
