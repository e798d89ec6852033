// One stream of one worker: from its pipe to the console, its log files and its last lines.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/output/console.h"
#include "agent/output/last_lines.h"
#include "agent/output/line_assembler.h"
#include "agent/output/line_prefix.h"
#include "agent/output/log_disk.h"
#include "agent/output/recent_lines.h"
#include "tools/base/clock.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Where a stream goes. The log disk and the recent lines outlive its pump.
struct StreamOutput {
  bool on_console = true;
  // The worker has this command's terminal: it writes to a terminal of its own, and its output
  // appears unchanged, at once and without prefix (a prompt has no end of line).
  bool as_terminal = false;
  bool in_place = false;                    // redrawn lines are shown as they change, on a terminal
  LinePrefix prefix;                        // before each line on the console and in `filtered`
  LogDisk* disk = nullptr;                  // set when a file is
  std::shared_ptr<LogDisk::File> file;      // gets the bytes as they are; null: none
  std::shared_ptr<LogDisk::File> filtered;  // gets the lines with one of `filters`; null: none
  std::vector<std::string> filters;
  RecentLines* recent = nullptr;  // gets the lines, as this worker's; null: none
  int rank = 0;
  int local_rank = 0;
};

// Lives on the thread of its loop.
class OutputPump {
 public:
  struct Options {
    OutputStream stream = OutputStream::kStdout;
    StreamOutput output;
    std::function<void()> on_end;  // at_end has turned true; must not destroy the pump
  };

  // `console` outlives the pump. Creates the pipe, or the terminal where one can be had; errors of
  // pipe2.
  static absl::StatusOr<std::unique_ptr<OutputPump>> Create(EventLoop& loop, Console& console,
                                                            Options options);
  ~OutputPump();
  OutputPump(const OutputPump&) = delete;
  OutputPump& operator=(const OutputPump&) = delete;

  // The child's end; close it when the child has it.
  int write_end() const { return write_end_.get(); }
  void CloseWriteEnd() { write_end_.Reset(); }

  const LastLines& last_lines() const { return last_lines_; }
  // True once every writer has closed the pipe and all was read, or after Close.
  bool at_end() const { return !read_end_.valid(); }
  // Tells whether the console's readers are slow. While they are, a worker that writes much waits
  // in its write; a worker that writes little does not notice.
  void SetConsoleSlow(bool slow);
  // The log disk may have room again.
  void Reconsider();
  // When OnTime is to be called: a line that has no end yet is then shown as it stands, but by log
  // files, which have its bytes already, and by last_lines.
  // There is no deadline while the worker has to wait: its line may be whole already.
  MonotonicTime next_deadline() const {
    return watched_ ? assembler_.due() : MonotonicTime::InfiniteFuture();
  }
  void OnTime(MonotonicTime now);
  // Reads the present content of the pipe, even while readers are slow (bounded by a pipe's
  // content).
  void ReadAvailable();
  // Reads the present content of the pipe, and no more after: some process keeps the pipe open.
  void Close();

 private:
  OutputPump(EventLoop& loop, Console& console, Options options);

  // Returns false when there is nothing to read now, or the pipe is at its end (then at_end() is
  // true).
  bool ReadOnce();
  void OnLine(absl::string_view line, const std::string& prefix, absl::Time now);
  // On the console, where it is asked for, and to viewers.
  void Show(absl::string_view line, const std::string& prefix, absl::Time now, bool on_console);
  void AtEnd();

  EventLoop& loop_;
  Console& console_;
  const OutputStream stream_;
  StreamOutput output_;
  const std::function<void()> on_end_;
  UniqueFd read_end_;
  UniqueFd write_end_;
  bool watched_ = false;
  bool console_slow_ = false;
  size_t allowance_ = 0;  // bytes that may still be read while the console is slow
  LineAssembler assembler_;
  LastLines last_lines_;
};

}  // namespace convene::agent
