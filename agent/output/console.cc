#include "agent/output/console.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/clock.h"

namespace convene::agent {
namespace {

// Moves the cursor to the row's start and clears the row.
constexpr absl::string_view kClearRow = "\r\033[K";

absl::string_view NameOf(OutputStream stream) {
  return stream == OutputStream::kStdout ? "stdout" : "stderr";
}

}  // namespace

Console::Console(EventLoop& loop, int stdout_fd, int stderr_fd, Listener listener)
    : loop_(loop),
      listener_(std::move(listener)),
      out_(OutputStream::kStdout, stdout_fd),
      err_(OutputStream::kStderr, stderr_fd) {}

Console::~Console() {
  for (Sink* sink : {&out_, &err_}) {
    if (sink->watched) loop_.Forget(sink->output.fd());
  }
}

bool Console::Congested() const {
  return out_.waiting.size() > kCongested || err_.waiting.size() > kCongested;
}

void Console::WriteLine(OutputStream stream, absl::string_view prefix, absl::string_view line) {
  EndRow();
  Sink& sink = SinkOf(stream);
  if (in_place_.empty() || !sink.output.is_terminal()) {
    Append(sink, prefix, line, "\n");
  } else {
    Append(SinkOf(in_place_stream_), kClearRow, "", "");
    Append(sink, prefix, line, "\n");
    Append(SinkOf(in_place_stream_), in_place_, "", "");
  }
}

void Console::Write(OutputStream stream, absl::string_view bytes) {
  if (!in_place_.empty()) SetInPlace(in_place_stream_, "", "");
  Append(SinkOf(stream), bytes, "", "");
  open_row_ = bytes.back() == '\n' ? nullptr : &SinkOf(stream);
}

void Console::EndRow() {
  if (open_row_ != nullptr) Append(*open_row_, "\n", "", "");
  open_row_ = nullptr;
}

void Console::SetInPlace(OutputStream stream, absl::string_view prefix, absl::string_view line) {
  if (!IsTerminal(stream)) return;
  EndRow();
  std::string text = line.empty() ? std::string() : absl::StrCat(prefix, line);
  if (text == in_place_) return;
  in_place_ = std::move(text);
  in_place_stream_ = stream;
  Append(SinkOf(stream), kClearRow, in_place_, "");
}

void Console::Append(Sink& sink, absl::string_view first, absl::string_view second,
                     absl::string_view third) {
  absl::StrAppend(&sink.waiting, first, second, third);
}

void Console::Flush() {
  for (Sink* sink : {&out_, &err_}) {
    if (!sink->watched) Flush(*sink);
  }
}

void Console::Flush(Sink& sink) {
  sink.output.Write(&sink.waiting);
  Watch(sink, !sink.waiting.empty());
  TellLoss(sink);
}

void Console::Watch(Sink& sink, bool wait) {
  if (wait == sink.watched) return;
  sink.watched = wait;
  if (wait) {
    loop_.Watch(
        sink.output.fd(), [this, &sink] { OnWritable(sink); }, /*writable=*/true);
  } else {
    loop_.Forget(sink.output.fd());
  }
}

void Console::TellLoss(Sink& sink) {
  const LostOutput& lost = sink.output.lost();
  if (!lost.any() || std::exchange(sink.told_loss, true)) return;
  listener_.on_loss(sink.stream, absl::StrCat("this command's ", NameOf(sink.stream),
                                              " takes no output (", lost.Reason(),
                                              "): lines of the workers are lost; the job goes on"));
}

std::string Console::Loss() const {
  std::vector<std::string> losses;
  for (const Sink* sink : {&out_, &err_}) {
    LostOutput lost = sink->output.lost();
    lost.Add(sink->waiting, sink->waiting.empty() ? lost.error : EAGAIN);
    if (!lost.any()) continue;
    losses.push_back(
        absl::StrCat(lost.Amount(), " for ", NameOf(sink->stream), " (", lost.Reason(), ")"));
  }
  return absl::StrJoin(losses, " and ");
}

void Console::OnWritable(Sink& sink) {
  const bool congested = Congested();
  Flush(sink);
  if (congested && !Congested()) listener_.on_relief();
}

bool Console::Drain(absl::Duration patience, absl::Duration limit) {
  SetInPlace(in_place_stream_, "", "");
  Flush();
  const MonotonicTime end = Clock::Real().Now() + limit;
  MonotonicTime deadline = std::min(Clock::Real().Now() + patience, end);
  while (true) {
    const size_t left = out_.waiting.size() + err_.waiting.size();
    if (left == 0) return true;
    loop_.RunOnce(deadline);
    const MonotonicTime now = Clock::Real().Now();
    if (out_.waiting.size() + err_.waiting.size() < left) {
      deadline = std::min(now + patience, end);
    }
    if (now >= deadline) return false;
  }
}

}  // namespace convene::agent
