// PURE. The words between `convene launch` and the `convene launched` that it starts on each host.
//
//   launch → launched, on its stdin    one HostTask, then a byte for each Request
//   launched → launch, on its stderr   marked lines between those of the agent, and heartbeats
//
// Each end sends a heartbeat kHeartbeatsPerTimeout times in the link timeout, and takes an end that
// is silent for longer than that for lost: no program on the way need notice a silent host.
//
// A task goes over stdin and not into the command line: any user of either machine can read a
// command line, and each shell on the way would want other quotes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace convene::launcher {

inline constexpr int kHeartbeatsPerTimeout = 4;

struct HostTask {
  absl::Duration link_timeout;  // a link that is silent for so long is lost
  // Of this agent: on one host two agents of one name never run at the same time.
  std::string name;
  std::string directory;  // where the agent starts
  std::vector<std::pair<std::string, std::string>> variables;
  std::vector<std::string> arguments;  // of `convene run`

  friend bool operator==(const HostTask&, const HostTask&) = default;
};

// REQUIRES: no text has a NUL; nothing of a process's arguments and environment has one.
std::string EncodeTask(const HostTask& task);

// A task that arrives in pieces of any size. Not thread-safe.
class TaskReader {
 public:
  // Takes bytes until the task is whole, and returns how many it took: the rest are requests.
  // InvalidArgument for bytes that `convene launch` of this version does not send.
  absl::StatusOr<size_t> Add(absl::string_view bytes);
  // nullopt: not whole yet.
  const std::optional<HostTask>& task() const { return task_; }

 private:
  std::string header_;
  std::string body_;
  std::optional<size_t> body_size_;
  std::optional<HostTask> task_;
};

// A byte after the task.
enum class Request : char {
  kNone = '.',  // the link lives
  kInterrupt = 'I',
  kTerminate = 'T',
  kHangUp = 'H',
  kQuit = 'Q',
  kAtOnce = 'K',  // every process of the job here is killed
};

// The request that passes a signal on.
Request RequestOf(int signal);
// 0 where the request is no signal for the agent.
int SignalIn(Request request);

// The marked lines, without their end.
std::string StartedLine();
std::string EndedLine(int exit_code);

struct LaunchedNews {
  std::optional<int> exit_code;  // nullopt: the agent starts now
};
// nullopt: a line of the agent or of a worker.
std::optional<LaunchedNews> ReadNews(absl::string_view line);

// A heartbeat of `convene launched`. The agent writes to the same stderr, so one may stand in the
// middle of a line; it is small enough that the kernel never parts it.
absl::string_view HeartbeatMark();

// Takes the heartbeats out of a stream that arrives in pieces of any size. Not thread-safe.
class HeartbeatFilter {
 public:
  // The bytes that are no heartbeats. A possible beginning of one waits for the next piece.
  std::string Add(absl::string_view bytes);
  // The bytes that still wait, at the end of the stream.
  std::string End() { return std::exchange(waiting_, {}); }

 private:
  std::string waiting_;
};

}  // namespace convene::launcher
