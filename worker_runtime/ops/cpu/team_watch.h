// Whether teams of threads pay on this machine now.
//
// A team ends with its last thread. Where each thread has a CPU of its own, that is soon. Where
// another process holds a CPU, or threads outnumber the CPUs, the last thread waits for its turn:
// 1 ms for work of 10 us, at each loop (llama-tiny with two threads beside a busy process: 5k
// tokens a second, with one thread 14k).
#pragma once

#include <algorithm>
#include <atomic>

namespace convene::worker::cpu {

// PURE. The watch of one thread that starts teams, one after the other. The time that teams lost is
// paid for by work that one thread does: twenty times as much, so that teams cost at most a
// twentieth of the time, and are tried again when that is over. Thread-compatible.
class TeamWatch {
 public:
  // A team took `whole` nanoseconds for work that takes one thread `alone`.
  void Ran(double alone, double whole) {
    balance_ = std::min(balance_ + alone - whole, kCredit);
    if (balance_ >= -kCredit) return;
    pause_ = kPauseForLoss * -balance_;
    balance_ = 0;
  }

  // Whether work is for one thread now, however large it is.
  bool is_paused() const { return pause_ > 0; }

  // One thread has done work of `nanoseconds`, in a pause or because no team is worth it.
  void RanAlone(double nanoseconds) { pause_ -= nanoseconds; }

 private:
  // A team that sleeps is woken once for many loops: 60 us for 2 threads, 275 us for 32.
  static constexpr double kCredit = 300'000;
  static constexpr double kPauseForLoss = 20;

  double balance_ = 0;  // what the last teams gained, as far as it counts
  double pause_ = 0;    // the work that one thread has to do before the next team
};

// Whether the threads of this process heed their watches. Off until it is set: tests ask for teams
// of more threads than there are CPUs, and have to get them. Bits never depend on it.
inline std::atomic<bool> watches_teams = false;

}  // namespace convene::worker::cpu
