#include "worker_runtime/ops/cpu/thread_count.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <vector>

namespace convene::worker::cpu {
namespace {

constexpr double kMicrosecond = 1e3;

TEST_CASE("work gets one thread, or all when it is worth a team of them") {
  struct Case {
    double nanoseconds;
    int64_t pieces;
    int threads;
    int team;
  };
  for (const Case& c : std::vector<Case>{{0, 0, 8, 1},
                                         {0, 64, 8, 1},
                                         {3.9 * kMicrosecond, 64, 2, 1},
                                         {4 * kMicrosecond, 64, 2, 2},
                                         {6.9 * kMicrosecond, 64, 8, 1},
                                         {7 * kMicrosecond, 64, 8, 8},
                                         {18 * kMicrosecond, 64, 32, 1},
                                         {19 * kMicrosecond, 64, 32, 32},
                                         {66 * kMicrosecond, 64, 128, 1},
                                         {1e9, 64, 128, 128},
                                         // Never a number between: its team would be started anew.
                                         {1e9, 3, 32, 32},
                                         {1e9, 1, 32, 1},
                                         {1e9, 0, 32, 1},
                                         {1e9, 64, 1, 1}}) {
    CAPTURE(c.nanoseconds, c.pieces, c.threads);
    CHECK(TeamSize(c.nanoseconds, c.pieces, c.threads) == c.team);
  }
}

TEST_CASE("work that may not have all threads gets some when it is worth ending the others") {
  CHECK(TeamSize(5 * kMicrosecond, 64, 4, 4) == 4);
  CHECK(TeamSize(4.5 * kMicrosecond, 64, 3, 4) == 3);
  CHECK(TeamSize(300 * kMicrosecond, 64, 8, 4) == 1);
  CHECK(TeamSize(340 * kMicrosecond, 64, 8, 4) == 4);
  CHECK(TeamSize(2000 * kMicrosecond, 64, 32, 4) == 1);
  CHECK(TeamSize(2300 * kMicrosecond, 64, 32, 4) == 4);
  CHECK(TeamSize(1e9, 64, 32, 1) == 1);
}

TEST_CASE(
    "each piece is run once, by one thread or by a team, also a piece for few of its threads") {
  const int threads_before = omp_get_max_threads();
  for (const int threads : {1, 2, 8}) {
    omp_set_num_threads(threads);
    for (const double nanoseconds : {0.0, 1e9}) {
      for (const int64_t pieces : {0, 1, 2, 5, 1000}) {
        CAPTURE(threads, nanoseconds, pieces);
        std::vector<int> runs(pieces);
        std::vector<int> teams(pieces);
        ForPieces(nanoseconds, pieces, [&](int64_t piece) {
          ++runs[piece];
          teams[piece] = omp_get_num_threads();
        });
        CHECK(runs == std::vector<int>(pieces, 1));
        CHECK(teams == std::vector<int>(pieces, TeamSize(nanoseconds, pieces, threads)));
      }
    }
  }
  omp_set_num_threads(threads_before);
}

TEST_CASE("after a team that lost, loops and products have one thread until the pause is over") {
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(8);
  const auto team_of_loop = [] {
    int team = 0;
    ForPieces(100 * kMicrosecond, 2, [&](int64_t piece) {
      if (piece == 0) team = omp_get_num_threads();
    });
    return team;
  };
  const auto team_of_product = [] {
    const LibraryTeam team(100 * kMicrosecond, 64, 8);
    return omp_get_max_threads();
  };
  ThisThreadsWatch().Ran(0, 1000 * kMicrosecond);
  CHECK(team_of_loop() == 8);  // the watch is not heeded
  watches_teams = true;
  // 20 times the loss of 1 ms are 200 such loops.
  int alone = 0;
  while (alone < 1000 && team_of_loop() == 1 && team_of_product() == 1) alone += 2;
  CHECK(alone == 200);
  ThisThreadsWatch() = TeamWatch();
  CHECK(team_of_product() == 8);
  ThisThreadsWatch() = TeamWatch();
  CHECK(team_of_loop() == 8);
  watches_teams = false;
  ThisThreadsWatch() = TeamWatch();
  omp_set_num_threads(threads_before);
}

TEST_CASE("a loop tells the watch when its other threads are late, and a product when all is") {
  using SteadyClock = std::chrono::steady_clock;
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(8);
  watches_teams = true;
  const auto busy = [] {
    const auto end = SteadyClock::now() + std::chrono::milliseconds(20);
    while (SteadyClock::now() < end) continue;
  };
  const auto loop = [](const auto& late) {
    ForPieces(10 * kMicrosecond, 8, [&](int64_t piece) {
      if (piece == 7) late();
    });
  };
  // A machine that keeps this very thread waiting in its share hides the loss: not a hundred times.
  int loops = 0;
  while (!ThisThreadsWatch().is_paused() && ++loops < 100) loop(busy);
  CHECK(ThisThreadsWatch().is_paused());
  ThisThreadsWatch() = TeamWatch();
  {
    const LibraryTeam team(10 * kMicrosecond, 64, 8);
    busy();
  }
  CHECK(ThisThreadsWatch().is_paused());
  watches_teams = false;
  ThisThreadsWatch() = TeamWatch();
  omp_set_num_threads(threads_before);
}

TEST_CASE("a scope's number of threads ends with it") {
  const int threads_before = omp_get_max_threads();
  omp_set_num_threads(8);
  {
    const ScopedThreadCount few(3);
    CHECK(omp_get_max_threads() == 3);
    const ScopedThreadCount one(1);
    CHECK(omp_get_max_threads() == 1);
  }
  CHECK(omp_get_max_threads() == 8);
  omp_set_num_threads(threads_before);
}

}  // namespace
}  // namespace convene::worker::cpu
