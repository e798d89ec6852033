// PURE. The count-down timers that workers set for themselves with torch.distributed.elastic.timer
// (expires(), FileTimerClient), as deadlines for stretches of their code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::agent {

struct TimerRequest {
  int64_t pid = 0;
  std::string scope;
  std::optional<absl::Time> expires;  // none: the stretch is over
  int signal = 0;                     // what the process gets when it is late; 0: nothing
};

// A line of the FIFO, as PyTorch's FileTimerRequest.to_json() writes it (version 1); none for any
// other text.
std::optional<TimerRequest> ParseTimerRequest(const std::string& json);

class TimerTable {
 public:
  static constexpr size_t kMostTimers = 4096;

  struct Expired {
    int64_t pid = 0;
    std::string scope;
    absl::Duration late;
    int signal = 0;
  };

  // False when there are too many timers for another one. `wall_now` and `now` are one moment: from
  // then on only the monotonic clock counts.
  bool Apply(const TimerRequest& request, absl::Time wall_now, MonotonicTime now);
  // Forgets a process that is gone.
  void Forget(int64_t pid);
  // Takes the processes with an expired timer, each once: with its first expired timer that has a
  // signal, else with the first. All timers of these processes are removed.
  std::vector<Expired> TakeExpired(MonotonicTime now);
  MonotonicTime next_due() const;

 private:
  struct Timer {
    MonotonicTime due;
    int signal = 0;
  };
  std::map<std::pair<int64_t, std::string>, Timer> timers_;
};

}  // namespace convene::agent
