#include "tools/base/patient_log.h"

#include <poll.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"

namespace convene {

void PatientLog::Add(absl::string_view line) {
  const bool has_waited = !pending_.empty();
  if (has_waited) WritePending();
  if (pending_.size() + line.size() > kMostPending) {
    ++dropped_;
    slow_.Add(line, EAGAIN);
    return;
  }
  TellDropped();
  absl::StrAppend(&pending_, line);
  has_waited ? (void)WritePending() : Flush(patience_);
}

LostOutput PatientLog::lost() const {
  LostOutput lost = output_.lost();
  lost.lines += slow_.lines;
  lost.bytes += slow_.bytes;
  if (lost.error == 0) lost.error = slow_.error;
  return lost;
}

void PatientLog::TellDropped() {
  if (dropped_ == 0) return;
  absl::StrAppend(&pending_, "[", std::exchange(dropped_, 0),
                  " lines of this log are missing here: the reader took none]\n");
}

void PatientLog::Flush(absl::Duration patience) {
  TellDropped();
  MonotonicTime deadline = Clock::Real().Now() + patience;
  for (size_t left = pending_.size(); !WritePending();) {
    if (pending_.size() < left) deadline = Clock::Real().Now() + patience;
    left = pending_.size();
    const absl::Duration wait = deadline - Clock::Real().Now();
    if (wait <= absl::ZeroDuration()) return;
    pollfd room = {output_.fd(), POLLOUT, 0};
    poll(&room, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
  }
}

bool PatientLog::WritePending() {
  output_.Write(&pending_);
  return pending_.empty();
}

}  // namespace convene
