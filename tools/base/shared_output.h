// A descriptor that other processes share (stdout, stderr), written to without waiting for its
// reader.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"
#include "tools/base/unique_fd.h"

namespace convene {

// Pipes, terminals and sockets never block. A regular file blocks while its disk hangs; so does a
// terminal of another user, which cannot be opened again.
class SharedOutput {
 public:
  // Does not own `fd`, which stays open as long as this object lives.
  explicit SharedOutput(int fd);

  int fd() const { return fd_; }  // to poll; not always the constructor's
  bool is_open() const { return is_open_; }
  bool is_terminal() const { return is_terminal_; }
  // Takes the bytes off `*pending` that the reader takes now. False when the reader is gone or the
  // disk is full: then `*pending` is dropped. SIGPIPE must be ignored, but for sockets.
  bool Write(std::string* pending) const;

 private:
  ssize_t WriteOnce(absl::string_view bytes) const;

  // The same pipe or terminal, opened again: O_NONBLOCK on the descriptor itself would also change
  // it for the shell and every other process that shares it.
  UniqueFd reopened_;
  int fd_;
  bool is_open_ = false;
  bool is_socket_ = false;
  bool is_terminal_ = false;
};

}  // namespace convene
