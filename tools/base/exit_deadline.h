// Ends the process for sure, even when a library hangs on its way out.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace convene {

// While it lives: when `patience` is over, `text` goes to stderr and the process ends with
// `exit_code` (_exit: no destructors, no exit handlers). Needs no thread, so that it works where
// none can be started. For the last steps of a program, when all that matters is done. One at a
// time; uses SIGALRM.
class ExitDeadline {
 public:
  ExitDeadline(absl::Duration patience, int exit_code, const std::string& text);
  ~ExitDeadline();
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;
};

}  // namespace convene
