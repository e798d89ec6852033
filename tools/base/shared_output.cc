#include "tools/base/shared_output.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace convene {

SharedOutput::SharedOutput(int fd) : fd_(fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return;
  is_open_ = true;
  is_terminal_ = isatty(fd) == 1;
  is_socket_ = S_ISSOCK(info.st_mode);
  if (!S_ISFIFO(info.st_mode) && !S_ISCHR(info.st_mode)) return;
  reopened_.Reset(open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (reopened_.valid()) fd_ = reopened_.get();
}

bool SharedOutput::Write(std::string* pending) const {
  size_t done = 0;
  while (done < pending->size()) {
    const ssize_t n = WriteOnce(absl::string_view(*pending).substr(done));
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      pending->clear();
      return false;
    }
  }
  pending->erase(0, done);
  return true;
}

ssize_t SharedOutput::WriteOnce(absl::string_view bytes) const {
  if (is_socket_) return send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return write(fd_, bytes.data(), bytes.size());
}

}  // namespace convene
