#include "tools/base/shared_output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace convene {
namespace {

// The lines at the front of `bytes` that a pipe takes as a whole or not at all, so that another
// writer's line never lands within one of them. A line longer than that stands alone, and may be
// cut.
absl::string_view AtomicLines(absl::string_view bytes) {
  if (bytes.size() <= PIPE_BUF) return bytes;
  size_t end = bytes.rfind('\n', PIPE_BUF - 1);
  if (end == absl::string_view::npos) end = bytes.find('\n');
  return end == absl::string_view::npos ? bytes : bytes.substr(0, end + 1);
}

// write(2) to a pipe whose descriptor blocks, as if it did not: EAGAIN where there is no room.
ssize_t WriteWithoutWaiting(int pipe, absl::string_view bytes) {
  const iovec data = {const_cast<char*>(bytes.data()), bytes.size()};
  const ssize_t n = pwritev2(pipe, &data, 1, -1, RWF_NOWAIT);
  if (n >= 0 || errno == EAGAIN) return n;
  // Older kernels (before 6.4) cannot do that for pipes, and some sandboxes for nothing. A pipe
  // with room has a whole page of it, unless a process that shares the pipe fills that page first.
  pollfd room = {pipe, POLLOUT, 0};
  if (poll(&room, 1, 0) < 1) {
    errno = EAGAIN;
    return -1;
  }
  return write(pipe, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
}

}  // namespace

SharedOutput::SharedOutput(int fd) : fd_(fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return;
  is_open_ = true;
  is_terminal_ = isatty(fd) == 1;
  is_socket_ = S_ISSOCK(info.st_mode);
  is_pipe_ = S_ISFIFO(info.st_mode);
  if (!S_ISFIFO(info.st_mode) && !S_ISCHR(info.st_mode)) return;
  reopened_.Reset(open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (reopened_.valid()) fd_ = reopened_.get();
}

void SharedOutput::Write(std::string* pending) {
  if (pending->empty()) return;
  const bool is_over = missing_.error == EPIPE || missing_.error == EBADF;
  if (!is_open_ || is_over)
    return Lose(std::exchange(*pending, {}), is_open_ ? missing_.error : EBADF);
  std::string notice;
  if (missing_.any()) {
    notice = absl::StrCat(is_at_line_start_ ? "" : "\n", "[convene: ", missing_.Amount(),
                          " are missing here: ", missing_.Reason(), "]\n");
    pending->insert(0, notice);
  }
  size_t done = 0;
  int error = 0;
  while (done < pending->size() && error == 0) {
    const ssize_t n = WriteOnce(absl::string_view(*pending).substr(done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (done > 0) {
    is_at_line_start_ = (*pending)[done - 1] == '\n';
    missing_ = {};
  }
  if (error != 0 && error != EAGAIN) {
    // A notice of which nothing was written is made anew the next time.
    Lose(absl::string_view(*pending).substr(done == 0 ? notice.size() : done), error);
    return pending->clear();
  }
  pending->erase(0, done == 0 ? notice.size() : done);
}

void SharedOutput::Lose(absl::string_view bytes, int error) {
  lost_.Add(bytes, error);
  missing_.Add(bytes, error);
}

ssize_t SharedOutput::WriteOnce(absl::string_view bytes) const {
  if (is_socket_) return send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (is_pipe_) bytes = AtomicLines(bytes);
  // A pipe of another user: a container's stdout that root made, or one from before `sudo -u`.
  if (is_pipe_ && !reopened_.valid()) return WriteWithoutWaiting(fd_, bytes);
  return write(fd_, bytes.data(), bytes.size());
}

}  // namespace convene
