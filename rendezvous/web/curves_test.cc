#include "rendezvous/web/curves.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace convene::rendezvous {
namespace {

JobView Job(int64_t step, int64_t epoch = 1) {
  JobView job;
  job.job_id = "j";
  job.phase = "running";
  job.epoch = Epoch(epoch);
  job.nodes.resize(2);
  for (NodeView& node : job.nodes) {
    node.group_rank = 0;
    node.progress = WorkerProgress{step, 2, "step"};
  }
  return job;
}

MonotonicTime At(double seconds) { return MonotonicTime::FromEpoch(absl::Seconds(seconds)); }

TEST_CASE("a sample is of the slowest node, sums tokens, and hears only ranks of the epoch") {
  JobView job = Job(10);
  job.nodes[1].progress = WorkerProgress{9, 1.5, "checkpoint"};
  // Of one job a rank tells the MFU for all, of another each rank tells its own.
  job.nodes[0].ranks = {{.loss = 2, .tokens_per_second = 100, .mfu = 0.25},
                        {.loss = 4, .tokens_per_second = 50, .mfu = 0.75},
                        {}};
  job.nodes.push_back(job.nodes[0]);
  job.nodes[2].group_rank = -1;
  job.nodes[2].progress->step = 1;
  const TrainingSample sample = SampleOf(job);
  CHECK(sample.step == 9);
  CHECK(sample.steps_per_second == 1.5);
  CHECK(sample.loss == 3);
  CHECK(sample.tokens_per_second == 150);
  CHECK(sample.mfu == 0.5);
  CHECK(sample.is_checkpointing);
  const TrainingSample none = SampleOf(JobView());
  CHECK_FALSE(none.step.has_value());
  CHECK_FALSE(none.loss.has_value());
}

TEST_CASE("a curve keeps its whole course in a bounded number of points") {
  Curve curve;
  for (int i = 1; i <= 100000; ++i) {
    curve.Add({.time_seconds = double(i), .step = i, .loss = double(i), .steps_per_second = NAN});
    REQUIRE(curve.points().size() <= Curve::kMostPoints);
  }
  const std::vector<CurvePoint>& points = curve.points();
  CHECK(points.size() > Curve::kMostPoints / 2);
  // 256 samples a point: the mean of 1 to 256, and of the 256 behind the points before.
  CHECK(points[0].step == 256);
  CHECK(points[0].loss == Approx(128.5));
  CHECK(points[1].loss == Approx(384.5));
  CHECK(points.back().step == 100000);
  CHECK(std::isnan(points[0].steps_per_second));
}

TEST_CASE("an untold value weighs nothing in a point") {
  Curve curve;
  for (size_t i = 0; i <= Curve::kMostPoints; ++i) {
    curve.Add({.loss = i % 2 == 0 ? 7 : NAN});
  }
  CHECK(curve.points()[0].loss == 7);
}

TEST_CASE("goodput is the share of the time that went into new steps") {
  Goodput goodput;
  const auto add = [&](double seconds, const JobView& job) {
    goodput.Add(At(seconds), SampleOf(job));
  };
  JobView forming;
  forming.phase = "forming";
  add(0, forming);
  CHECK_FALSE(goodput.share().has_value());
  for (int i = 0; i <= 10; ++i) add(10 + i, Job(i));  // 10 s of 20
  CHECK(*goodput.share() == Approx(0.5));
  // The job falls back to step 5, and is at step 10 again after 10 s.
  for (int i = 0; i <= 5; ++i) add(25 + i, Job(5 + i, 2));
  CHECK(*goodput.share() == Approx(10.0 / 30));
  for (int i = 1; i <= 10; ++i) add(30 + i, Job(10 + i, 2));
  CHECK(*goodput.share() == Approx(0.5));
}

TEST_CASE("the way to the first step of an epoch is no step") {
  Goodput goodput;
  for (int i = 0; i <= 10; ++i) goodput.Add(At(i), SampleOf(Job(i)));
  // The checkpoint was of the last step, and the first look sees two new ones.
  goodput.Add(At(40), SampleOf(Job(12, 2)));
  CHECK(*goodput.share() == Approx(10.0 / 40));
}

TEST_CASE("steps are slow and looks are rare: goodput counts both") {
  Goodput slow;
  for (int i = 0; i <= 100; ++i) slow.Add(At(i), SampleOf(Job(i / 10)));
  CHECK(*slow.share() == Approx(1.0));
  Goodput rare;
  rare.Add(At(0), SampleOf(Job(0)));
  rare.Add(At(100), SampleOf(Job(50)));
  rare.Add(At(101), SampleOf(Job(40, 2)));
  rare.Add(At(121), SampleOf(Job(60, 2)));  // half of these steps are new
  CHECK(*rare.share() == Approx(110.0 / 121));
}

TEST_CASE("the time of a checkpoint is no step") {
  Goodput goodput;
  goodput.Add(At(0), SampleOf(Job(0)));
  JobView saving = Job(0);
  saving.nodes[0].progress->phase = "checkpoint";
  goodput.Add(At(2), SampleOf(saving));
  goodput.Add(At(6), SampleOf(saving));
  goodput.Add(At(8), SampleOf(Job(0)));
  goodput.Add(At(10), SampleOf(Job(1)));
  CHECK(*goodput.share() == Approx(0.4));
}

TEST_CASE("curves of a job last as long as the job is known, and stand still when it is over") {
  JobCurves curves;
  curves.Add(At(0), absl::FromUnixSeconds(100), {Job(1)});
  curves.Add(At(1), absl::FromUnixSeconds(101), {Job(2)});
  REQUIRE(curves.Find("j") != nullptr);
  CHECK(curves.Find("j")->curve.points().size() == 2);
  CHECK(curves.Find("j")->curve.points()[1].time_seconds == 101);
  JobView over = Job(2);
  over.phase = "succeeded";
  curves.Add(At(50), absl::FromUnixSeconds(150), {over});
  CHECK(curves.Find("j")->curve.points().size() == 2);
  CHECK(*curves.Find("j")->goodput.share() == Approx(1.0));
  curves.Add(At(51), absl::FromUnixSeconds(151), {});
  CHECK(curves.Find("j") == nullptr);
}

TEST_CASE("a new run of a job's name begins curves and a goodput of its own") {
  JobCurves curves;
  curves.Add(At(0), absl::FromUnixSeconds(100), {Job(999)});
  curves.Add(At(1), absl::FromUnixSeconds(101), {Job(1000)});
  JobView next = Job(0, 2);
  SECTION("after a look at the end of the one before") {
    JobView over = Job(1000);
    over.phase = "failed";
    curves.Add(At(2), absl::FromUnixSeconds(102), {over});
    CHECK(curves.Find("j")->curve.points().size() == 2);
  }
  SECTION("between two looks") { next.floor = Epoch(1); }
  curves.Add(At(300), absl::FromUnixSeconds(400), {next});
  for (NodeView& node : next.nodes) node.progress->step = 1;
  curves.Add(At(301), absl::FromUnixSeconds(401), {next});
  CHECK(curves.Find("j")->curve.points().size() == 2);
  CHECK(*curves.Find("j")->goodput.share() == Approx(1.0));
}

}  // namespace
}  // namespace convene::rendezvous
