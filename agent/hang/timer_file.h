// torchrun's file timer (TORCHELASTIC_ENABLE_FILE_TIMER=1; PyTorch's file_based_local_timer.py): a
// FIFO on which processes of this node say until when a stretch of their code must be over.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/hang/timer_table.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Lives on the thread of its loop. A process is known by a pidfd: a number that is used again is
// another process.
class TimerFile {
 public:
  struct Listener {
    // Its timer has a signal, which it gets from Reap.
    std::function<void(const TimerTable::Expired&)> on_expired;
    std::function<void(const std::string&)> on_log;  // a line for the log
  };

  // Makes the FIFO; an old FIFO that no process reads is taken away first. AlreadyExists: something
  // else is there, or another agent reads it; FailedPrecondition: it cannot be made there.
  static absl::StatusOr<std::unique_ptr<TimerFile>> Create(EventLoop& loop, const std::string& path,
                                                           Listener listener);
  ~TimerFile();
  TimerFile(const TimerFile&) = delete;
  TimerFile& operator=(const TimerFile&) = delete;

  const std::string& path() const { return path_; }

  // Sends the signal of the timer that was told of by on_expired, if there was one and the process
  // still is. Once.
  void Reap(int64_t pid);

 private:
  struct Process {
    UniqueFd fd;
    int signal = 0;  // that it is to get
  };

  TimerFile(EventLoop& loop, std::string path, UniqueFd fifo, Listener listener);
  void OnReadable();
  void OnLine(const std::string& line);
  void OnTime();
  // False: it is not there, or cannot be watched.
  bool Know(int64_t pid);
  void Forget(int64_t pid);
  void SetTimer();

  EventLoop& loop_;
  const std::string path_;
  const UniqueFd fifo_;
  const Listener listener_;
  std::string unfinished_;  // the beginning of a line
  TimerTable table_;
  std::map<int64_t, Process> processes_;
  LoopTimer timer_;
  bool has_told_of_nonsense_ = false;
  bool has_told_of_excess_ = false;
};

}  // namespace convene::agent
