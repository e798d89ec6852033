#include "agent/core/rank_reports.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

MonotonicTime At(double seconds) {
  return MonotonicTime::FromEpoch(absl::Hours(5) + absl::Seconds(seconds));
}

// A worker that has finished `step` steps of 200 ms, the first 100 ms of each by itself.
WorkerReading AfterStep(int64_t step) {
  return {.step = step,
          .phase = "step",
          .changed_at = At(0.2 * static_cast<double>(step)),
          .times = {.compute = step * absl::Milliseconds(100),
                    .wait = step * absl::Milliseconds(90),
                    .data = step * absl::Milliseconds(9),
                    .checkpoint = step * absl::Milliseconds(1)},
          .tokens = step * 1000,
          .loss = 2.5,
          .memory_bytes = 70,
          .memory_peak_bytes = 80,
          .place = 3,
          .mfu = 0.4};
}

TEST_CASE("times are means of the steps since the last report") {
  RankReports reports;
  auto told = reports.Report({{2, AfterStep(10)}}, At(2));
  REQUIRE(told.size() == 1);
  CHECK(told[0].local_rank == 2);
  CHECK(told[0].step == 10);
  CHECK(told[0].steps == 0);
  CHECK(told[0].compute_ms == 0);
  CHECK(told[0].memory_bytes == 70);
  CHECK(told[0].memory_peak_bytes == 80);
  CHECK(told[0].loss == 2.5);
  CHECK(told[0].place == 3);
  CHECK(told[0].mfu == 0.4);

  told = reports.Report({{2, AfterStep(15)}}, At(3));
  CHECK(told[0].steps == 5);
  CHECK(told[0].compute_ms == Approx(100));
  CHECK(told[0].wait_ms == Approx(90));
  CHECK(told[0].data_ms == Approx(9));
  CHECK(told[0].checkpoint_ms == Approx(1));
  CHECK(told[0].steps_per_second == Approx(5));
  CHECK(told[0].tokens_per_second == Approx(5000));

  // Only the new steps count.
  WorkerReading slower = AfterStep(16);
  slower.times.compute = AfterStep(15).times.compute + absl::Milliseconds(400);
  told = reports.Report({{2, slower}}, At(4));
  CHECK(told[0].steps == 1);
  CHECK(told[0].compute_ms == Approx(400));
}

TEST_CASE("a wait for a rank is told of a worker that makes no step") {
  RankReports reports;
  WorkerReading waiting = AfterStep(10);
  waiting.awaits = "all_reduce #17 of dp waits for rank 3";
  CHECK(reports.Report({{2, waiting}}, At(2))[0].awaits.empty());
  CHECK(reports.Report({{2, waiting}}, At(3))[0].awaits == waiting.awaits);
  waiting.is_stopped = true;
  CHECK(reports.Report({{2, waiting}}, At(3))[0].awaits.empty());
  waiting.is_stopped = false;
  ++waiting.step;
  CHECK(reports.Report({{2, waiting}}, At(4))[0].awaits.empty());
}

TEST_CASE("a worker that resumes tells its tokens after its step: the sum is no rate") {
  RankReports reports;
  WorkerReading resumed = AfterStep(1000);
  resumed.tokens = 0;
  reports.Report({{0, resumed}}, At(1));
  auto told = reports.Report({{0, AfterStep(1001)}}, At(2));
  CHECK(told[0].steps == 1);
  CHECK(told[0].tokens_per_second == 0);
  told = reports.Report({{0, AfterStep(1002)}}, At(3));
  CHECK(told[0].tokens_per_second == Approx(5000));
}

TEST_CASE("a worker without a new step keeps its means, which are told to be old") {
  RankReports reports;
  reports.Report({{0, AfterStep(1)}}, At(1));
  reports.Report({{0, AfterStep(2)}}, At(2));
  WorkerReading saving = AfterStep(2);
  saving.phase = "checkpoint";
  const auto told = reports.Report({{0, saving}}, At(3));
  CHECK(told[0].steps == 0);
  CHECK(told[0].phase == "checkpoint");
  CHECK(told[0].compute_ms == Approx(100));
}

TEST_CASE("steps that go back, sums that fall and a clock that stands give no figure") {
  RankReports reports;
  reports.Report({{0, AfterStep(9)}}, At(1));
  auto told = reports.Report({{0, AfterStep(3)}}, At(2));
  CHECK(told[0].steps == 0);
  CHECK(told[0].step == 3);
  WorkerReading odd = AfterStep(4);
  odd.times = {};
  odd.tokens = 0;
  odd.changed_at = AfterStep(3).changed_at;
  told = reports.Report({{0, odd}}, At(3));
  CHECK(told[0].steps == 1);
  CHECK(told[0].compute_ms == 0);
  CHECK(told[0].steps_per_second == 0);
  CHECK(told[0].tokens_per_second == 0);
}

TEST_CASE("an epoch begins with nothing known, and reports are a second apart") {
  RankReports reports;
  CHECK(reports.IsDue(At(0)));
  reports.Report({{0, AfterStep(1)}}, At(1));
  CHECK_FALSE(reports.IsDue(At(1.9)));
  CHECK(reports.IsDue(At(2)));
  reports.BeginEpoch();
  CHECK(reports.Report({{0, AfterStep(5)}}, At(2))[0].steps == 0);
}

TEST_CASE("of a node with very many workers the first ones are told") {
  RankReports reports;
  std::map<int, WorkerReading> readings;
  for (int i = 0; i < 2 * rendezvous::kMostRanksTold; ++i) readings[i] = AfterStep(1);
  const auto told = reports.Report(readings, At(1));
  CHECK(told.size() == rendezvous::kMostRanksTold);
  CHECK(told.back().local_rank == rendezvous::kMostRanksTold - 1);
}

}  // namespace
}  // namespace convene::agent
