// The agent's own stdout and stderr, as the place where all workers' lines meet.
#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "tools/base/event_loop.h"
#include "tools/base/shared_output.h"

namespace convene::agent {

enum class OutputStream { kStdout, kStderr };

// Never blocks: lines that a slow reader does not take wait in memory; `Congested` asks the writers
// to pause, so that memory stays bounded. A reader that is gone and a disk that is full cost the
// lines alone (log files still get them): they are counted and told. Lives on the thread of its
// loop.
class Console {
 public:
  static constexpr size_t kCongested = 1 << 20;  // bytes waiting, per stream

  struct Listener {
    std::function<void()> on_relief;  // Congested has turned false
    // A stream takes nothing more, for the first time: a line for the person. It may be told on the
    // other stream; the Console may be called.
    std::function<void(OutputStream, const std::string&)> on_loss;
  };

  // SIGPIPE and SIGXFSZ must be ignored.
  Console(EventLoop& loop, int stdout_fd, int stderr_fd, Listener listener);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool IsTerminal(OutputStream stream) const { return SinkOf(stream).output.is_terminal(); }
  bool Congested() const;

  // Queues `prefix`, `line` and an end of line for Flush.
  void WriteLine(OutputStream stream, absl::string_view prefix, absl::string_view line);
  // Queues `bytes` unchanged. Should they end within a row, the next line of another writer begins
  // a new one.
  void Write(OutputStream stream, absl::string_view bytes);
  // On a terminal `line` stands in the last row, is redrawn below the lines that follow, and stays
  // until it is replaced ("" takes it away). Where `stream` is no terminal, nothing is done.
  void SetInPlace(OutputStream stream, absl::string_view prefix, absl::string_view line);
  // Writes as much as the readers take now; the loop writes the rest when they are ready again.
  void Flush();

  // Waits until all is written, at most `limit`, and as long as the reader takes something at least
  // every `patience`. False: some bytes still wait.
  bool Drain(absl::Duration patience, absl::Duration limit = absl::InfiniteDuration());
  // The bytes that did not get out so far, those that wait included, for the last words; "": there
  // are none.
  std::string Loss() const;

 private:
  struct Sink {
    Sink(OutputStream stream, int fd) : stream(stream), output(fd) {}

    const OutputStream stream;
    SharedOutput output;
    bool told_loss = false;
    bool watched = false;
    std::string waiting;
  };

  Sink& SinkOf(OutputStream stream) { return stream == OutputStream::kStdout ? out_ : err_; }
  const Sink& SinkOf(OutputStream stream) const {
    return stream == OutputStream::kStdout ? out_ : err_;
  }
  static void Append(Sink& sink, absl::string_view first, absl::string_view second,
                     absl::string_view third);
  void Flush(Sink& sink);
  void Watch(Sink& sink, bool wait);
  void OnWritable(Sink& sink);
  void TellLoss(Sink& sink);

  EventLoop& loop_;
  const Listener listener_;
  Sink out_;
  Sink err_;
  // Ends the row that Write has left open.
  void EndRow();

  OutputStream in_place_stream_ = OutputStream::kStdout;
  std::string in_place_;  // with its prefix
  Sink* open_row_ = nullptr;
};

}  // namespace convene::agent
