#include "agent/output/output_pump.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

constexpr size_t kReadSize = 64 * 1024;
// The most that a pipe can hold unless root enlarged it: the bound of ReadAvailable.
constexpr size_t kPipeContent = 1 << 20;
// Bytes that each stream may still send while the console is slow, so that one noisy worker does
// not stop the others.
constexpr size_t kAllowance = 64 * 1024;

struct Ends {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Ends> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe for a worker's output");
  return Ends{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A terminal that is only written to: bytes come out as they go in, and it is as wide as ours.
absl::StatusOr<Ends> MakeTerminal() {
  const auto error = [] { return ErrnoStatus(errno, "terminal for a worker's output"); };
  Ends ends;
  ends.read.Reset(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!ends.read.valid() || unlockpt(ends.read.get()) != 0) return error();
  char path[64];
  if (ptsname_r(ends.read.get(), path, sizeof(path)) != 0) return error();
  ends.write.Reset(open(path, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings = {};
  if (!ends.write.valid() || tcgetattr(ends.write.get(), &settings) != 0) return error();
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  if (tcsetattr(ends.write.get(), TCSANOW, &settings) != 0) return error();
  winsize size = {};
  if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0) ioctl(ends.write.get(), TIOCSWINSZ, &size);
  return ends;
}

}  // namespace

OutputPump::OutputPump(EventLoop& loop, Console& console, Options options)
    : loop_(loop),
      console_(console),
      stream_(options.stream),
      output_(std::move(options.output)),
      on_end_(std::move(options.on_end)) {}

absl::StatusOr<std::unique_ptr<OutputPump>> OutputPump::Create(EventLoop& loop, Console& console,
                                                               Options options) {
  absl::StatusOr<Ends> made = options.output.as_terminal ? MakeTerminal() : MakePipe();
  if (!made.ok() && options.output.as_terminal) made = MakePipe();  // A container without devpts.
  CONVENE_ASSIGN_OR_RETURN(Ends ends, std::move(made));
  std::unique_ptr<OutputPump> pump(new OutputPump(loop, console, std::move(options)));
  // Only our end is non-blocking: the worker's must block.
  fcntl(ends.read.get(), F_SETFL, O_NONBLOCK);
  pump->read_end_ = std::move(ends.read);
  pump->write_end_ = std::move(ends.write);
  pump->Reconsider();
  return pump;
}

OutputPump::~OutputPump() {
  if (watched_) loop_.Forget(read_end_.get());
  if (output_.file != nullptr) output_.disk->Close(output_.file);
}

void OutputPump::SetConsoleSlow(bool slow) {
  if (slow == console_slow_) return;
  console_slow_ = slow;
  allowance_ = kAllowance;
  Reconsider();
}

void OutputPump::Reconsider() {
  if (!read_end_.valid()) return;
  const bool waits_for_console = console_slow_ && output_.on_console && allowance_ == 0;
  const bool wanted =
      !waits_for_console && (output_.file == nullptr || !output_.disk->MustWait(*output_.file));
  if (wanted == watched_) return;
  watched_ = wanted;
  if (wanted) {
    loop_.Watch(read_end_.get(), [this] { ReadOnce(); });
  } else {
    loop_.Forget(read_end_.get());
  }
}

void OutputPump::ReadAvailable() {
  for (size_t i = 0; i < kPipeContent / kReadSize && !at_end(); ++i) {
    if (!ReadOnce()) return;
  }
}

void OutputPump::Close() {
  ReadAvailable();
  if (!at_end()) AtEnd();
}

bool OutputPump::ReadOnce() {
  static char buffer[kReadSize];  // One thread, no recursion.
  const ssize_t n = read(read_end_.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return errno == EINTR;
  if (n <= 0) {  // 0, or EIO of a terminal that nobody holds any more.
    AtEnd();
    return false;
  }
  const absl::string_view bytes(buffer, n);
  if (output_.file != nullptr) output_.disk->Append(output_.file, bytes);
  const absl::Time now = WallNow();
  const std::string& prefix = output_.prefix.At(now);
  if (output_.on_console && output_.as_terminal) console_.Write(stream_, bytes);
  assembler_.Add(bytes, Clock::Real().Now(),
                 [&](absl::string_view line) { OnLine(line, prefix, now); });
  if (output_.on_console) {
    if (output_.in_place && !output_.as_terminal) {
      console_.SetInPlace(stream_, prefix, assembler_.InPlace());
    }
    console_.Flush();
    allowance_ -= std::min<size_t>(allowance_, n);
  }
  Reconsider();
  return true;
}

void OutputPump::OnLine(absl::string_view line, const std::string& prefix, absl::Time now) {
  last_lines_.Add(line);
  Show(line, prefix, now, output_.on_console && !output_.as_terminal);
  if (output_.filtered == nullptr) return;
  for (const std::string& filter : output_.filters) {
    if (!absl::StrContains(line, filter)) continue;
    return output_.disk->Append(output_.filtered, absl::StrCat(prefix, line, "\n"));
  }
}

void OutputPump::Show(absl::string_view line, const std::string& prefix, absl::Time now,
                      bool on_console) {
  if (output_.recent != nullptr) {
    output_.recent->Add(now, output_.rank, output_.local_rank, stream_ == OutputStream::kStderr,
                        line);
  }
  if (on_console) console_.WriteLine(stream_, prefix, line);
}

void OutputPump::OnTime(MonotonicTime now) {
  if (now < next_deadline()) return;
  ReadOnce();  // The line's end may have come while this process, or the reading, stood still.
  if (now < next_deadline()) return;
  // Already seen: on a terminal of the worker's own, or in the last row.
  const bool is_seen = output_.as_terminal || (output_.in_place && console_.IsTerminal(stream_) &&
                                               !assembler_.InPlace().empty());
  assembler_.ShowOpen(now, [&](absl::string_view line) {
    const absl::Time wall = WallNow();
    Show(line, output_.prefix.At(wall), wall, output_.on_console && !is_seen);
    console_.Flush();
  });
}

void OutputPump::AtEnd() {
  if (watched_) loop_.Forget(read_end_.get());
  watched_ = false;
  read_end_.Reset();
  const absl::Time now = WallNow();
  const std::string& prefix = output_.prefix.At(now);
  assembler_.End([&](absl::string_view line) { OnLine(line, prefix, now); });
  if (output_.on_console) {
    if (output_.in_place) console_.SetInPlace(stream_, "", "");
    console_.Flush();
  }
  on_end_();
}

}  // namespace convene::agent
