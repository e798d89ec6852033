#include "rendezvous/quorum/straggler_judge.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace convene::rendezvous {
namespace {

using Catch::Contains;

// The true time of a rank's step, before noise.
struct Work {
  double compute = 100;
  double data = 2;
  double wait = 0;  // beside the wait for the slowest rank
  double save = 0;
};

// A job whose ranks wait for the slowest one in each step. A step takes a second of the test's
// time, so that each is judged.
struct SimulatedJob {
  SimulatedJob(int ranks, int ranks_per_node, uint64_t seed, double noise = 0.05)
      : ranks(ranks), ranks_per_node(ranks_per_node), random(seed), noise(noise) {
    judge.BeginEpoch(ranks);
  }

  double Noisy(double time) {
    std::normal_distribution<double> normal(1, noise);
    const bool is_pause = std::uniform_real_distribution<double>(0, 1)(random) < 0.01;
    return std::max(0.0, time * normal(random)) * (is_pause ? 3 : 1);
  }

  // One report, of `steps_told` steps, of each rank.
  void Step() {
    std::vector<RankProgress> reports(ranks);
    for (int i = 0; i < steps_told; ++i) {
      std::vector<double> own(ranks);
      ++step;
      for (int rank = 0; rank < ranks; ++rank) {
        const Work work = work_of(rank);
        const double compute = Noisy(work.compute);
        const double data = Noisy(work.data);
        own[rank] = compute + data;
        reports[rank].compute_ms += compute / steps_told;
        reports[rank].data_ms += data / steps_told;
        reports[rank].checkpoint_ms = work.save / steps_told;
      }
      const double slowest = *std::max_element(own.begin(), own.end());
      for (int rank = 0; rank < ranks; ++rank) {
        reports[rank].wait_ms +=
            (slowest - own[rank] + Noisy(5) + Noisy(work_of(rank).wait)) / steps_told;
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      reports[rank].step = step;
      reports[rank].steps = steps_told;
      reports[rank].place = place_of(rank);
      judge.Hear(rank, rank / ranks_per_node, reports[rank]);
    }
    now = now + absl::Seconds(1);
    for (const StragglerJudge::Change& change : judge.Judge(now)) changes.push_back(change);
  }

  void Steps(int count) {
    for (int i = 0; i < count; i += steps_told) Step();
  }

  // The steps until a straggler was found; 1000: none was.
  int StepsToFind() {
    const int64_t begin = step;
    while (judge.stragglers().empty() && step < begin + 1000) Step();
    return static_cast<int>(step - begin);
  }

  const int ranks;
  const int ranks_per_node;
  std::mt19937_64 random;
  const double noise;
  int steps_told = 1;
  int64_t step = 0;
  std::function<Work(int)> work_of = [](int) { return Work(); };
  std::function<int(int)> place_of = [](int) { return 0; };
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(5));
  StragglerJudge judge;
  std::vector<StragglerJudge::Change> changes;
};

TEST_CASE("a rank that is 30 % slower is found within 30 steps, and named") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SimulatedJob job(8, 4, seed);
    job.steps_told = 1 + static_cast<int>(seed % 5);
    job.Steps(60);
    job.work_of = [](int rank) { return Work{.compute = rank == 5 ? 130.0 : 100.0}; };
    REQUIRE(job.StepsToFind() <= 30);
    const Straggler& found = job.judge.stragglers().front();
    CHECK(found.kind == StragglerKind::kRank);
    CHECK(found.rank == 5);
    CHECK(found.node == 1);
    job.Steps(30);
    REQUIRE(job.judge.stragglers().size() == 1);
    CHECK(job.judge.stragglers()[0].slower_by == Approx(0.3).margin(0.1));
    CHECK_THAT(job.judge.stragglers()[0].why, Contains("the median rank of its place"));
    REQUIRE(job.changes.size() == 1);
    CHECK(job.changes[0].is_found);
  }
}

TEST_CASE("quiet jobs give no alarm in 1,000 steps") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    for (const double noise : {0.02, 0.05, 0.1}) {
      SimulatedJob job(8, 4, seed, noise);
      job.steps_told = seed % 4 == 0 ? 5 : 1;
      if (seed % 3 == 0) job.place_of = [](int rank) { return 1 + rank / 4; };
      if (seed % 3 == 1) job.place_of = [](int rank) { return 1 + rank; };
      job.Steps(1000);
      CAPTURE(seed, noise);
      REQUIRE(job.changes.empty());
    }
  }
}

TEST_CASE("two ranks are enough to tell the slow one") {
  SimulatedJob job(2, 2, 1);
  job.work_of = [](int rank) { return Work{.compute = rank == 0 ? 130.0 : 100.0}; };
  CHECK(job.StepsToFind() <= 10 + 30);
  CHECK(job.judge.stragglers().front().rank == 0);
  CHECK_THAT(job.judge.stragglers().front().why, Contains("the other rank of its place"));
}

TEST_CASE("a straggler that recovers is gone, once") {
  SimulatedJob job(8, 4, 3);
  job.work_of = [](int rank) { return Work{.compute = rank == 2 ? 150.0 : 100.0}; };
  job.Steps(60);
  CHECK(job.judge.stragglers().size() == 1);
  const MonotonicTime since = job.judge.stragglers().front().since;
  job.work_of = [](int) { return Work(); };
  job.Steps(60);
  CHECK(job.judge.stragglers().empty());
  REQUIRE(job.changes.size() == 2);
  CHECK(job.changes[0].straggler.since == since);
  CHECK_FALSE(job.changes[1].is_found);
  CHECK(job.changes[1].straggler.rank == 2);
}

TEST_CASE("a node is named as a whole when all its ranks are slow") {
  SimulatedJob job(16, 4, 4);
  job.Steps(60);
  job.work_of = [](int rank) { return Work{.compute = rank / 4 == 2 ? 130.0 : 100.0}; };
  job.Steps(40);
  REQUIRE(job.judge.stragglers().size() == 1);
  CHECK(job.judge.stragglers()[0].kind == StragglerKind::kNode);
  CHECK(job.judge.stragglers()[0].node == 2);
  CHECK(job.judge.stragglers()[0].rank == 8);
  CHECK_THAT(job.judge.stragglers()[0].why, Contains("all its 4 ranks are slow"));
}

TEST_CASE("a node of one rank is told as a rank") {
  SimulatedJob job(4, 1, 13);
  job.work_of = [](int rank) { return Work{.compute = rank == 2 ? 130.0 : 100.0}; };
  CHECK(job.StepsToFind() <= 10 + 30);
  CHECK(job.judge.stragglers().front().kind == StragglerKind::kRank);
}

TEST_CASE("a slow disk shows in the wait for samples, or in the saves") {
  SimulatedJob loads(8, 4, 5);
  loads.Steps(60);
  loads.work_of = [](int rank) { return Work{.data = rank == 6 ? 40.0 : 2.0}; };
  CHECK(loads.StepsToFind() <= 30);
  CHECK(loads.judge.stragglers().front().kind == StragglerKind::kDisk);
  CHECK(loads.judge.stragglers().front().rank == 6);
  CHECK_THAT(loads.judge.stragglers().front().why, Contains("for its samples"));

  SimulatedJob saves(8, 4, 6);
  saves.work_of = [&saves](int rank) {
    const bool is_save = saves.step % 20 == 0;
    return Work{.save = is_save ? (rank == 1 ? 9000.0 : 2000.0) : 0};
  };
  saves.Steps(100);
  REQUIRE(saves.judge.stragglers().size() == 1);
  CHECK(saves.judge.stragglers()[0].kind == StragglerKind::kDisk);
  CHECK(saves.judge.stragglers()[0].rank == 1);
  CHECK_THAT(saves.judge.stragglers()[0].why, Contains("its saves take 9 s"));
}

TEST_CASE("a slow link shows in waits that nobody's work explains") {
  SimulatedJob job(8, 4, 7);
  job.Steps(60);
  job.work_of = [](int) { return Work{.wait = 60}; };
  CHECK(job.StepsToFind() <= 30);
  CHECK(job.judge.stragglers().front().kind == StragglerKind::kLink);
  CHECK(job.judge.stragglers().front().rank == -1);

  SimulatedJob at_one(8, 4, 8);
  at_one.Steps(60);
  at_one.work_of = [](int rank) { return Work{.wait = rank == 3 ? 200.0 : 50.0}; };
  CHECK(at_one.StepsToFind() <= 30);
  CHECK(at_one.judge.stragglers().front().rank == 3);

  // A node with a bad card: any of its ranks may wait most, and the link is news once.
  SimulatedJob at_node(16, 4, 9);
  at_node.Steps(60);
  at_node.work_of = [](int rank) { return Work{.wait = rank / 4 == 1 ? 200.0 : 50.0}; };
  at_node.Steps(240);
  CHECK(at_node.changes.size() == 1);

  // Waits that a slow rank may explain are no link's.
  SimulatedJob at_rank(8, 4, 14);
  at_rank.Steps(60);
  at_rank.work_of = [](int rank) { return Work{.compute = rank == 5 ? 150.0 : 100.0, .wait = 60}; };
  at_rank.Steps(100);
  REQUIRE(at_rank.changes.size() == 1);
  CHECK(at_rank.changes[0].straggler.kind == StragglerKind::kRank);
}

TEST_CASE("a stage of a pipeline that is alone in its place is compared with its past") {
  SimulatedJob job(4, 4, 9);
  job.place_of = [](int rank) { return rank + 1; };
  job.work_of = [](int rank) { return Work{.compute = 60.0 + 20 * rank}; };
  job.Steps(60);
  CHECK(job.judge.stragglers().empty());  // stages differ, and none is slow
  job.work_of = [](int rank) { return Work{.compute = rank == 3 ? 170.0 : 60.0 + 20 * rank}; };
  CHECK(job.StepsToFind() <= 30);
  REQUIRE(job.judge.stragglers().size() == 1);
  CHECK(job.judge.stragglers()[0].rank == 3);
  CHECK_THAT(job.judge.stragglers()[0].why, Contains("the others wait for it"));

  // It works longer, but waits longer, too: nobody waits for it.
  SimulatedJob waits(4, 4, 15);
  waits.place_of = job.place_of;
  waits.Steps(60);
  waits.work_of = [](int rank) {
    return rank == 3 ? Work{.compute = 150, .wait = 200} : Work{.wait = 60};
  };
  waits.Steps(100);
  for (const StragglerJudge::Change& change : waits.changes) {
    CHECK(change.straggler.kind != StragglerKind::kRank);
  }
}

TEST_CASE("work that grows for all ranks makes none slow") {
  SimulatedJob job(4, 4, 10);
  job.place_of = [](int rank) { return rank + 1; };
  job.Steps(60);
  job.work_of = [](int) { return Work{.compute = 200, .wait = 20}; };
  job.Steps(200);
  CHECK(job.changes.empty());

  // The others wait longer for the stage that has most to do, and it is no slower than it was.
  SimulatedJob uneven(4, 4, 12);
  uneven.place_of = [](int rank) { return rank + 1; };
  uneven.work_of = [](int rank) { return Work{.compute = rank == 3 ? 100.0 : 20.0}; };
  uneven.Steps(60);
  uneven.work_of = [](int rank) { return Work{.compute = rank == 3 ? 200.0 : 40.0}; };
  uneven.Steps(200);
  CHECK(uneven.changes.empty());
}

TEST_CASE("ranks that tell no times are not judged, nor are the first steps") {
  StragglerJudge judge;
  judge.BeginEpoch(2);
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(1));
  for (int step = 1; step < 100; ++step) {
    now = now + absl::Seconds(1);
    judge.Hear(0, 0, {.step = step, .steps = 1});
    judge.Hear(1, 0, {.step = step, .data_ms = 1000, .steps = 1});
    CHECK(judge.Judge(now).empty());
  }
  // Three of four tell waits alone: the fourth has no equal.
  SimulatedJob lonely(4, 4, 17);
  lonely.work_of = [](int rank) { return Work{.compute = rank == 2 ? 50.0 : 0.0, .data = 0}; };
  lonely.Steps(200);
  CHECK(lonely.changes.empty());
  // A report that is told again, as each heartbeat between two steps does, is one sample.
  SimulatedJob again(2, 2, 16);
  again.Steps(60);
  for (int time = 0; time < 40; ++time) {
    again.Step();
    for (int beat = 0; beat < 5; ++beat) {
      again.judge.Hear(0, 0, {.step = again.step, .compute_ms = 900, .wait_ms = 5, .steps = 1});
    }
  }
  CHECK(again.changes.empty());

  SimulatedJob job(8, 4, 11);
  job.work_of = [&job](int rank) {
    return Work{.compute = rank == 0 && job.step <= 24 ? 900.0 : 100.0};
  };
  job.Steps(200);
  CHECK(job.changes.empty());
}

}  // namespace
}  // namespace convene::rendezvous
