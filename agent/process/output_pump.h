// One stream of one worker: from its pipe to the console, its log file and its last lines.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/process/console.h"
#include "agent/process/event_loop.h"
#include "agent/process/last_lines.h"
#include "agent/process/line_assembler.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Lives on the thread of its loop.
class OutputPump {
 public:
  struct Options {
    OutputStream stream = OutputStream::kStdout;
    std::string prefix;            // before each line on the console
    std::string log_file;          // "" = none; gets the bytes as they are, appended
    bool in_place = false;         // redrawn lines are shown as they change, on a terminal
    std::function<void()> on_end;  // at_end has turned true; must not destroy the pump
  };

  // `last_lines` and `console` outlive the pump. Creates the pipe; errors of pipe2 and open.
  static absl::StatusOr<std::unique_ptr<OutputPump>> Create(EventLoop& loop, Console& console,
                                                            LastLines& last_lines, Options options);
  ~OutputPump();
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // For the child; close it when the child has it.
  int write_end() const { return write_end_.get(); }
  void CloseWriteEnd() { write_end_.Reset(); }

  // True once every writer has closed the pipe and all was read, or after Close.
  bool at_end() const { return !read_end_.valid(); }
  // Pauses or goes on reading: a worker that writes faster than the console's reader reads then
  // waits in its write.
  void SetPaused(bool paused);
  // Reads what is there now, even when paused (at most a pipe's content each: bounded).
  void ReadAvailable();
  // Reads what is there now, and no more after: somebody keeps the pipe open.
  void Close();

 private:
  OutputPump(EventLoop& loop, Console& console, LastLines& last_lines, Options options);

  // False when nothing is there now, or the pipe is at its end (which it then is).
  bool ReadOnce();
  void OnLine(absl::string_view line);
  void AtEnd();

  EventLoop& loop_;
  Console& console_;
  LastLines& last_lines_;
  const Options options_;
  UniqueFd read_end_;
  UniqueFd write_end_;
  UniqueFd log_file_;
  bool watched_ = false;
  LineAssembler assembler_;
};

}  // namespace convene::agent
