// Gathers the stacks of a worker that hangs, before it is stopped.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/custody/bounded_command.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"

namespace convene::agent {

struct StackTarget {
  int global_rank = 0;
  pid_t pid = 0;
  bool dumps_on_signal = false;  // it says that SIGUSR2 makes it dump; it is asked only if it
                                 // catches that signal, too
};

// The kernel's own view of a process, without any tool: its threads by name, state, system call and
// place in the kernel, equal threads together. At most 40 lines; empty when it has ended.
std::vector<std::string> KernelView(int global_rank, pid_t pid);

// Whether a debugger is attached to the process.
bool IsTraced(pid_t pid);

// Whether a signal has stopped the process (state T). A debugger's stop is another state.
bool IsStopped(pid_t pid);

// The process that tells a worker's progress. A worker may be a wrapper (a shell, `uv run`) around
// it: then `told`, the number that the process tells of itself, is a descendant of `worker`. Any
// other number (0, or one of another container) means the worker itself.
pid_t TellingProcess(pid_t worker, pid_t told);

// One look at several workers:
//
//   1. at once, all: the kernel's view, and SIGUSR2 to those that answer it (on their own stderr,
//      so in the log), half a second
//   2. the first target: py-spy when it is Python, then gdb, each if it is in PATH; none of a
//      process that a signal has stopped
//
// all within `deadline`; a tool that runs then is killed, which lets go of the worker. Lives on the
// thread of its loop.
class StackDump {
 public:
  struct Result {
    // The tools' output; empty when there is no tool or it was not permitted (then `lines` says
    // so).
    std::vector<std::string> stack;
    std::vector<std::string> lines;  // everything, at most 500 lines of 500 bytes
  };
  // `targets` is not empty; at most 16 are looked at. `on_done` is called once, from the loop, and
  // may destroy the dump.
  StackDump(EventLoop& loop, const std::vector<StackTarget>& targets,
            const std::string& search_path, absl::Duration deadline,
            std::function<void(Result)> on_done);
  StackDump(const StackDump&) = delete;
  StackDump& operator=(const StackDump&) = delete;

 private:
  struct Tool {
    std::string name;
    std::string program;
    std::vector<std::string> arguments;
  };

  void FindTools(pid_t pid, const std::string& search_path);
  void NextTool();
  void OnTool(const Tool& tool, const BoundedCommand::Outcome& outcome);
  void Finish();

  EventLoop& loop_;
  const std::string first_target_;  // "rank 3"
  std::function<void(Result)> on_done_;
  std::vector<Tool> tools_;  // left to run, the next one last
  std::vector<std::string> kernel_lines_;
  Result result_;
  MonotonicTime end_;
  LoopTimer timer_;
  std::unique_ptr<BoundedCommand> command_;
};

}  // namespace convene::agent
