// How many threads a CPU op uses: the one rule for every loop that starts an OpenMP team.
//
// The rule answers one thread, or all threads that the caller may use, and no number between.
// libgomp keeps the threads of a team for the next team, and two threads that wait for it,
// spinning, start and end it within 0.6 us. A smaller team ends the threads that it leaves over,
// and the next larger team starts them anew: 60 us a thread (a team of 4 and one of 32 in
// turns: 2.3 ms a pair; two cores of an AMD EPYC). A team of one thread touches no other thread. So
// a loop with fewer pieces than threads gets all threads as well, and some of them do nothing.
#pragma once

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "worker_runtime/ops/cpu/team_watch.h"

namespace convene::worker::cpu {

// PURE. The threads for work that takes one thread `nanoseconds` (to within a factor of two) and
// comes in `pieces` that are never cut. `threads`: all that there are. A team's start and end cost
// a part for each of its threads: its work must be worth several times that. `most`: of the threads
// that the work may have for another reason than its size; it must then be worth ending the rest of
// the last team, and starting it again for the next.
constexpr int TeamSize(double nanoseconds, int64_t pieces, int threads,
                       int most = std::numeric_limits<int>::max()) {
  constexpr double kTeam = 3000;
  constexpr double kMember = 500;
  constexpr double kEndedMember = 80'000;
  const int team = std::min(threads, most);
  const double cost = kTeam + kMember * team + kEndedMember * (threads - team);
  return pieces > 1 && team > 1 && nanoseconds >= cost ? team : 1;
}

// The calling thread's.
inline TeamWatch& ThisThreadsWatch() {
  thread_local TeamWatch watch;
  return watch;
}

// TeamSize, as far as the calling thread's watch allows.
inline int TeamNow(double nanoseconds, int64_t pieces, int most = std::numeric_limits<int>::max()) {
  const int team = TeamSize(nanoseconds, pieces, omp_get_max_threads(), most);
  return team > 1 && watches_teams && ThisThreadsWatch().is_paused() ? 1 : team;
}

// Work of a team, from its making on.
class WatchedTeam {
 public:
  WatchedTeam() : is_watched_(watches_teams), begin_(is_watched_ ? Clock::now() : Time()) {}

  // The calling thread has done its own share.
  void OwnShareDone() {
    if (is_watched_) own_ = Clock::now();
  }
  // All have. One thread would have taken `shares` times as long as it took for its own share.
  void DoneShares(double shares) const {
    if (is_watched_) Tell(shares * Nanoseconds(own_ - begin_));
  }
  // All have. One thread would have taken `nanoseconds`.
  void Done(double nanoseconds) const {
    if (is_watched_) Tell(nanoseconds);
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  static double Nanoseconds(Clock::duration time) {
    return std::chrono::duration<double, std::nano>(time).count();
  }
  void Tell(double alone) const {
    ThisThreadsWatch().Ran(alone, Nanoseconds(Clock::now() - begin_));
  }

  const bool is_watched_;
  const Time begin_;
  Time own_;
};

// Calls run(piece) once for each piece from 0 to below `pieces`, in any order, by the threads that
// TeamNow says. `run` writes what no other piece reads or writes.
template <typename Run>
void ForPieces(double nanoseconds, int64_t pieces, const Run& run) {
  const int team = TeamNow(nanoseconds, pieces);
  if (team == 1) {  // without a region: libgomp takes 0.4 us for a region of one thread
    for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
    if (watches_teams) ThisThreadsWatch().RanAlone(nanoseconds);
    return;
  }
  WatchedTeam watched;
#pragma omp parallel num_threads(team)
  {
#pragma omp for schedule(static) nowait
    for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
    if (omp_get_thread_num() == 0) watched.OwnShareDone();
  }
  watched.DoneShares(static_cast<double>(std::min<int64_t>(team, pieces)));
}

// The regions that a library starts from this thread have `threads` threads while the object lives.
class ScopedThreadCount {
 public:
  explicit ScopedThreadCount(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ScopedThreadCount() { omp_set_num_threads(before_); }
  ScopedThreadCount(const ScopedThreadCount&) = delete;
  ScopedThreadCount& operator=(const ScopedThreadCount&) = delete;

 private:
  const int before_;
};

// While it lives, the regions that a library starts from this thread have TeamNow's threads. The
// time of one thread is estimated to within a factor of two, and rows that lie in another core's
// cache take longer: only a team that takes three times the estimate has lost.
class LibraryTeam {
 public:
  LibraryTeam(double nanoseconds, int64_t pieces, int most)
      : nanoseconds_(nanoseconds),
        team_(TeamNow(nanoseconds, pieces, most)),
        thread_count_(team_) {}
  ~LibraryTeam() {
    constexpr double kDoubt = 3;
    if (team_ > 1) {
      watched_.Done(kDoubt * nanoseconds_);
    } else if (watches_teams) {
      ThisThreadsWatch().RanAlone(nanoseconds_);
    }
  }
  LibraryTeam(const LibraryTeam&) = delete;
  LibraryTeam& operator=(const LibraryTeam&) = delete;

 private:
  const double nanoseconds_;
  const int team_;
  const ScopedThreadCount thread_count_;
  const WatchedTeam watched_;
};

}  // namespace convene::worker::cpu
