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
#include <cstdint>
#include <limits>

namespace convene::worker::cpu {

// PURE. The threads for work that takes one thread `nanoseconds` (to within a factor of two) and
// comes in `pieces` that are never cut. `threads`: all that there are. A team's start and end cost
// a part for each of its threads: its work must be worth several times that. `most`: of the threads
// that the work may have for another reason than its size; it must then be worth ending the rest of
// the last team, and starting it again for the next.
constexpr int TeamSize(double nanoseconds, int64_t pieces, int threads,
                       int most = std::numeric_limits<int>::max()) {
  constexpr double kTeam = 14'000;
  constexpr double kMember = 1000;
  constexpr double kEndedMember = 80'000;
  const int team = std::min(threads, most);
  const double cost = kTeam + kMember * team + kEndedMember * (threads - team);
  return pieces > 1 && team > 1 && nanoseconds >= cost ? team : 1;
}

// Calls run(piece) once for each piece from 0 to below `pieces`, in any order, by the threads that
// TeamSize says. `run` writes what no other piece reads or writes.
template <typename Run>
void ForPieces(double nanoseconds, int64_t pieces, const Run& run) {
  const int team = TeamSize(nanoseconds, pieces, omp_get_max_threads());
  if (team == 1) {  // without a region: libgomp takes 0.4 us for a region of one thread
    for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
    return;
  }
#pragma omp parallel for schedule(static) num_threads(team)
  for (int64_t piece = 0; piece < pieces; ++piece) run(piece);
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

}  // namespace convene::worker::cpu
