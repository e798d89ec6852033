// torchrun's file timer (TORCHELASTIC_ENABLE_FILE_TIMER=1; PyTorch's file_based_local_timer.py): a
// FIFO on which processes of this node give the deadlines of stretches of their code.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

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
    // Called when a timer is over; Reap sends its signal, if it has one.
    std::function<void(const TimerTable::Expired&)> on_expired;
    std::function<void(const std::string&)> on_log;  // a line for the log
  };

  // Makes the FIFO; an old FIFO that no process reads is taken away first. AlreadyExists: another
  // kind of file is there, or another agent reads the FIFO; FailedPrecondition: it cannot be made
  // there.
  static absl::StatusOr<std::unique_ptr<TimerFile>> Create(EventLoop& loop, const std::string& path,
                                                           Listener listener);
  ~TimerFile();
  TimerFile(const TimerFile&) = delete;
  TimerFile& operator=(const TimerFile&) = delete;

  const std::string& path() const { return path_; }

  // Sends the signal of the timer that on_expired reported, if there was one and the process still
  // runs. Call it once.
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
  // Returns false when the process is gone, or cannot be watched.
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
