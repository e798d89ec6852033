// A descriptor that other processes share (stdout, stderr), written to without waiting for its
// reader.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/strings/string_view.h"
#include "tools/base/lost_output.h"
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
  // Takes the bytes off `*pending` that the reader takes now. Where the reader is gone (EPIPE), the
  // descriptor is none (EBADF) or the disk is full, it takes all of them off, and counts them as
  // lost. A disk that has room again gets a line that tells how much is missing before what comes
  // next. A pipe takes a line of up to PIPE_BUF bytes as a whole, so no other writer's line lands
  // in it. SIGPIPE must be ignored, but for sockets.
  void Write(std::string* pending);
  // Since the start.
  const LostOutput& lost() const { return lost_; }

 private:
  ssize_t WriteOnce(absl::string_view bytes) const;
  void Lose(absl::string_view bytes, int error);

  // The same pipe or terminal, opened again: O_NONBLOCK on the descriptor itself would also change
  // it for the shell and every other process that shares it.
  UniqueFd reopened_;
  int fd_;
  bool is_open_ = false;
  bool is_socket_ = false;
  bool is_pipe_ = false;
  bool is_terminal_ = false;
  bool is_at_line_start_ = true;
  LostOutput lost_;
  LostOutput missing_;  // the part of lost_ that the output does not tell of yet
};

}  // namespace convene
