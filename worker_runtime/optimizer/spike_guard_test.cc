#include "worker_runtime/optimizer/spike_guard.h"

#include <cmath>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

TEST_CASE("a limit is the factor times the mean, once the window is full") {
  SpikeGuard guard({.max_loss = 1.5, .max_gradient = 4, .window = 3});
  for (const double value : {6.0, 3.0}) {
    guard.Record(value, value / 2);
    CHECK(std::isinf(guard.Limits().loss));
    CHECK(std::isinf(guard.Limits().gradient_norm));
  }
  guard.Record(3.0, 1.5);
  CHECK(guard.Limits().loss == 1.5 * 4);
  CHECK(guard.Limits().gradient_norm == 4 * 2);
  guard.Record(1.0, 0.5);  // a third of the way from 4 to 1
  CHECK(guard.Limits().loss == 1.5 * 3);
}

TEST_CASE("a factor of 0 limits nothing") {
  SpikeGuard guard({.max_gradient = 2, .window = 1});
  guard.Record(1.0, 1.0);
  CHECK(std::isinf(guard.Limits().loss));
  CHECK(guard.Limits().gradient_norm == 2);
  CHECK(SpikeGuard({}).State().empty());
}

TEST_CASE("a guard goes on from its state as if nothing had been between") {
  const SpikeOptions options = {.max_loss = 1.5, .max_gradient = 4, .window = 5};
  SpikeGuard guard(options);
  for (int i = 1; i < 20; ++i) {
    guard.Record(1.0 / i, 1.0 / (3 * i));
    SpikeGuard resumed(options);
    CHECK_OK(resumed.Restore(guard.State()));
    CHECK(resumed.Limits().loss == guard.Limits().loss);
    CHECK(resumed.Limits().gradient_norm == guard.Limits().gradient_norm);
    CHECK(resumed.State() == guard.State());
  }
  SpikeGuard fresh(options);
  CHECK_OK(fresh.Restore(""));
  CHECK(std::isinf(fresh.Limits().loss));
  for (const char* wrong :
       {"x", "1 2", "1 2 3 4", "-1 2 3", "1 2 three", "1 2 3 0 4", "1 2 3 4 -5"}) {
    CHECK_STATUS(SpikeGuard(options).Restore(wrong), absl::StatusCode::kDataLoss, "two numbers");
  }
}

TEST_CASE("so many spikes take the training back, and what they skipped stays skipped") {
  const SpikeOptions options = {.max_loss = 2, .window = 1, .max_rollbacks = 2};
  SpikeGuard guard(options);
  guard.Record(1.5, 1);
  const std::string before = guard.State();
  CHECK_FALSE(guard.GoesBack(SkipReason::kNone));
  CHECK_FALSE(guard.GoesBack(SkipReason::kNoNumber));
  CHECK(guard.GoesBack(SkipReason::kLossSpike));
  guard.WentBack(12);
  CHECK(guard.GoesBack(SkipReason::kGradientSpike));
  guard.WentBack(20);
  CHECK_FALSE(guard.GoesBack(SkipReason::kLossSpike));
  CHECK(guard.skipped_samples() == 32);
  SpikeGuard resumed(options);
  CHECK_OK(resumed.Restore(guard.State()));
  CHECK(resumed.State() == guard.State());
  SpikeGuard older(options);
  CHECK_OK(older.Restore(before));
  older.KeepRollbacks(guard);
  CHECK(older.State() == guard.State());
  older.KeepRollbacks(SpikeGuard(options));
  CHECK(older.rollbacks() == 2);
}

}  // namespace
}  // namespace convene::worker
