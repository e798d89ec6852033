// One ssh process: requests go to its stdin, lines come from its stdout and stderr.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/output/console.h"
#include "agent/output/line_assembler.h"
#include "launcher/launch/task.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene::launcher {

// Lives on the thread of its loop, which is the main one (agent/custody/spawn.h says why). The
// process dies with this one, however this one ends: then the other side reads the end of its
// stdin.
class HostLink {
 public:
  struct Listener {
    // Something came, be it a heartbeat of the other end alone. Comes before on_line.
    std::function<void()> on_heard;
    // A line without its end. Not called by the constructor.
    std::function<void(agent::OutputStream stream, absl::string_view line)> on_line;
    // The process has ended, and all that it wrote was told. 128 + n: by signal n. Called once, and
    // must not destroy the link.
    std::function<void(int exit_code)> on_end;
  };

  // `words`: `program`'s argv. `input` is the beginning of its stdin. Errors as Spawn's and
  // pipe2's.
  static absl::StatusOr<std::unique_ptr<HostLink>> Start(EventLoop& loop,
                                                         const std::string& program,
                                                         const std::vector<std::string>& words,
                                                         std::string input, Listener listener);
  // Kills the process.
  ~HostLink();
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  // A link that does not take more gets no kNone.
  void Send(Request request);
  // Kills the process; on_end follows.
  void Kill();
  // While paused, nothing is read, so that the other side waits.
  void SetPaused(bool paused);

 private:
  struct Stream {
    UniqueFd read_end;
    agent::OutputStream kind = agent::OutputStream::kStdout;
    agent::LineAssembler lines;
  };

  HostLink(EventLoop& loop, std::string input, Listener listener);

  void WriteInput();
  // False when there is nothing to read now.
  bool ReadOnce(Stream& stream);
  // Tells the last line, which may have no end.
  void EndLines(Stream& stream);
  void OnEnded();
  void Close(UniqueFd& fd);

  EventLoop& loop_;
  const Listener listener_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;  // invalid: reaped
  UniqueFd stdin_;
  std::string input_;  // not taken yet
  Stream out_;
  Stream err_;
  HeartbeatFilter heartbeats_;  // of err_
};

}  // namespace convene::launcher
