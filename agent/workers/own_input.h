// This command's stdin, for the worker that gets it.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include <optional>

#include "agent/output/stream_plan.h"

namespace convene::agent {

// Lives on one thread.
class OwnInput {
 public:
  // Looks at `fd`, and remembers how its terminal is set.
  explicit OwnInput(int fd);

  int fd() const { return fd_; }
  const InputFacts& facts() const { return facts_; }
  // Whether the shell lets this command read its terminal now. REQUIRES: it is one.
  bool IsInForeground() const;
  // Whether a process of `session` waits for what is typed there: in read(2), or in select(2) with
  // the terminal as the highest descriptor, as Python's prompts do. A program that waits in poll(2)
  // or epoll(7) is not seen.
  bool IsAwaitedBy(pid_t session) const;
  // Sets the terminal as it was: a worker that died at its prompt has left it without echo. Does
  // nothing where there is no terminal, or where it is another program's by now. An agent that a
  // signal kills cannot do it, and its guardian must not: by then the terminal is the shell's, and
  // bash and zsh set it back themselves.
  void Restore() const;

 private:
  const int fd_;
  InputFacts facts_;
  std::optional<termios> settings_;
};

}  // namespace convene::agent
