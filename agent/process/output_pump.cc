#include "agent/process/output_pump.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "spdlog/spdlog.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

constexpr size_t kReadSize = 64 * 1024;
// What a pipe can hold at most unless root enlarged it: the bound of ReadAvailable.
constexpr size_t kPipeContent = 1 << 20;

}  // namespace

OutputPump::OutputPump(EventLoop& loop, Console& console, LastLines& last_lines, Options options)
    : loop_(loop), console_(console), last_lines_(last_lines), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<OutputPump>> OutputPump::Create(EventLoop& loop, Console& console,
                                                               LastLines& last_lines,
                                                               Options options) {
  std::unique_ptr<OutputPump> pump(new OutputPump(loop, console, last_lines, std::move(options)));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe for a worker's output");
  pump->read_end_.Reset(ends[0]);
  pump->write_end_.Reset(ends[1]);
  // Only our end: the worker's must block.
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const std::string& path = pump->options_.log_file;
  if (!path.empty()) {
    CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(path)));
    pump->log_file_.Reset(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!pump->log_file_.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  pump->SetPaused(false);
  return pump;
}

OutputPump::~OutputPump() { SetPaused(true); }

void OutputPump::SetPaused(bool paused) {
  if (!read_end_.valid() || paused == !watched_) return;
  watched_ = !paused;
  if (paused) {
    loop_.Forget(read_end_.get());
  } else {
    loop_.Watch(read_end_.get(), [this] { ReadOnce(); });
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
  if (n <= 0) {
    AtEnd();
    return false;
  }
  const absl::string_view bytes(buffer, n);
  if (log_file_.valid()) {
    const absl::Status written = WriteAll(log_file_.get(), bytes, options_.log_file);
    if (!written.ok()) {
      spdlog::warn("{}: this log ends here", std::string(written.message()));
      log_file_.Reset();
    }
  }
  assembler_.Add(bytes, [this](absl::string_view line) { OnLine(line); });
  if (options_.in_place) {
    console_.SetInPlace(options_.stream, options_.prefix, assembler_.InPlace());
  }
  console_.Flush();
  return true;
}

void OutputPump::OnLine(absl::string_view line) {
  last_lines_.Add(line);
  console_.WriteLine(options_.stream, options_.prefix, line);
}

void OutputPump::AtEnd() {
  SetPaused(true);
  read_end_.Reset();
  assembler_.End([this](absl::string_view line) { OnLine(line); });
  if (options_.in_place) console_.SetInPlace(options_.stream, "", "");
  console_.Flush();
  options_.on_end();
}

}  // namespace convene::agent
