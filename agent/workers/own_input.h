// This command's stdin, for the worker that gets it.
#pragma once

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
  // Sets the terminal as it was: a worker that died at its prompt has left it without echo. Does
  // nothing where there is no terminal, or where it is another program's by now.
  void Restore() const;

 private:
  const int fd_;
  InputFacts facts_;
  std::optional<termios> settings_;
};

}  // namespace convene::agent
