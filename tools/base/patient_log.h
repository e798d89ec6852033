// Log lines to a descriptor whose reader may stand still (a pager, `tee` on a full disk): the
// program goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/shared_output.h"

namespace convene {

// Not thread-safe.
class PatientLog {
 public:
  static constexpr size_t kMostPending = 64 * 1024;  // bytes

  // `patience`: how long one line waits for the reader. Later lines do not wait again until
  // everything before them has been taken.
  PatientLog(int fd, absl::Duration patience) : output_(fd), patience_(patience) {}

  // `line` with its end. It is written, or waits for the next call, or is dropped when kMostPending
  // wait already; a line in the log then tells how many were dropped.
  void Add(absl::string_view line);
  // Writes the waiting lines; gives up when the reader takes nothing for `patience`.
  void Flush(absl::Duration patience);
  // The lines that are not in the log, and never will be.
  LostOutput lost() const;

 private:
  // Writes waiting lines; true when none is left.
  bool WritePending();
  void TellDropped();

  SharedOutput output_;
  const absl::Duration patience_;
  std::string pending_;
  int64_t dropped_ = 0;  // lines that the log does not tell of yet
  LostOutput slow_;      // lines for which there was no room
};

}  // namespace convene
