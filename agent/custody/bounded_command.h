// A program that the agent runs beside the workers (a health check, a debugger): it cannot hang the
// agent, nor flood it, nor outlive it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/core/exit_classifier.h"
#include "agent/custody/spawn.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Lives on the thread of its loop, which is the main one (spawn.h says why).
class BoundedCommand {
 public:
  struct Request {
    SpawnRequest spawn;      // with an output of ours
    absl::Duration timeout;  // then SIGKILL to its process group
    // The beginning and the end of its output, stdout and stderr together, are kept.
    size_t first_bytes = 0;
    size_t last_bytes = 0;
  };
  struct Outcome {
    bool timed_out = false;
    ExitStatus status;   // valid unless timed_out
    std::string output;  // "..." stands for what was left out
  };

  // `on_done` is called once, from the loop, when the program has ended, its process group is
  // killed and its output read; or when it did not die of SIGKILL within a second. It may destroy
  // the command. Errors as Spawn's, and of pipe2 and timerfd_create.
  static absl::StatusOr<std::unique_ptr<BoundedCommand>> Start(
      EventLoop& loop, const Request& request, std::function<void(Outcome)> on_done);
  // Kills the rest of the process group.
  ~BoundedCommand();
  BoundedCommand(const BoundedCommand&) = delete;
  BoundedCommand& operator=(const BoundedCommand&) = delete;

  // 0 when it has ended.
  pid_t pid() const { return pidfd_.valid() ? pid_ : 0; }

 private:
  BoundedCommand(EventLoop& loop, const Request& request, std::function<void(Outcome)> on_done);

  // Returns false when there is nothing to read now.
  bool ReadOnce();
  void OnEnded();
  void OnTime();
  void Finish();
  void StopReading();

  EventLoop& loop_;
  const size_t first_bytes_;
  const size_t last_bytes_;
  std::function<void(Outcome)> on_done_;
  LoopTimer timer_;
  UniqueFd output_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;  // invalid: reaped
  std::string first_;
  std::string last_;
  bool has_left_out_ = false;
  Outcome outcome_;
};

}  // namespace convene::agent
