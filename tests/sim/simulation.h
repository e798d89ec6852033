// Virtual time, luck and a log of events for the simulated world.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::sim {

// A broken promise. The test adds the seed.
inline void Expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Runs events in the order of their times; events of one time run in the order they were planned.
// The seed decides everything that happens in a world. Not thread-safe.
class Simulation {
 public:
  static constexpr size_t kRemembered = 80;  // lines

  // `traced`: Note() keeps the last kRemembered lines.
  Simulation(uint64_t seed, bool traced) : random_(seed), traced_(traced) {}

  MonotonicTime now() const { return now_; }
  int64_t event_count() const { return event_count_; }

  void At(MonotonicTime time, std::function<void()> happen) {
    queue_.push({std::max(time, now_), ++planned_, std::move(happen)});
  }
  void After(absl::Duration wait, std::function<void()> happen) {
    At(now_ + wait, std::move(happen));
  }
  // Runs the next event; false when there is none.
  bool RunOne() {
    if (queue_.empty()) return false;
    const Entry entry = queue_.top();
    queue_.pop();
    now_ = entry.time;
    ++event_count_;
    entry.happen();
    return true;
  }

  int Between(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  double Fraction() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  bool Chance(double probability) { return Fraction() < probability; }
  absl::Duration Upto(absl::Duration most) { return most * Fraction(); }

  template <typename... Parts>
  void Note(const Parts&... parts) {
    if (!traced_) return;
    if (trace_.size() == kRemembered) trace_.pop_front();
    trace_.push_back(absl::StrCat(absl::FormatDuration(now_.since_epoch()), " ", parts...));
  }
  const std::deque<std::string>& trace() const { return trace_; }

 private:
  struct Entry {
    MonotonicTime time;
    int64_t order;
    std::function<void()> happen;
    bool operator<(const Entry& other) const {  // the earliest on top
      return time == other.time ? order > other.order : time > other.time;
    }
  };

  std::mt19937_64 random_;
  const bool traced_;
  MonotonicTime now_;
  int64_t planned_ = 0;
  int64_t event_count_ = 0;
  std::priority_queue<Entry> queue_;
  std::deque<std::string> trace_;
};

}  // namespace convene::sim
