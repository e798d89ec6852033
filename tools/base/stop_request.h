// PURE. Whether a signal that asks this process to end is news: the agent and its workers judge by
// the same rule, so that together they see one request, whoever sends it and how often.
//
// These senders repeat a request, and want only the checkpoint that the first signal began:
//
//   Slurm, proctrack/linuxproc   TERM to every process of the step, workers too; the agent passes
//                                its own on to the workers on top
//   Slurm, a time limit          TERM twice, 2 to 20 ms apart
//   Slurm, a preemption          TERM at once, and once or twice more when the grace ends
//   timeout(1), mpirun, kill 0   the same signal to a process and to its group; INT, then TERM
//   a key held down              INT every 30 ms
//
// A sender that does not want to wait any longer follows with KILL, which needs no rule. A person
// at a terminal has no key for KILL: there a second Ctrl-C (or Ctrl-\) means "at once". No process
// can forge it: for a key the kernel sets si_code to SI_KERNEL, and it lets no process send that.
#pragma once

#include <sys/signalfd.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "tools/base/clock.h"

namespace convene {

struct ReceivedSignal {
  int number = 0;
  bool from_kernel = false;  // SI_KERNEL: a key of the controlling terminal, or its end (HUP)
  // si_pid; 0: the kernel, or a process outside of this pid namespace.
  pid_t sender = 0;
  MonotonicTime at = {};  // when it was read
};

// As it has just been read.
ReceivedSignal SignalOf(const signalfd_siginfo& info);

// Not thread-safe.
class StopRequest {
 public:
  enum class Meaning {
    kStop,    // the request: stop in order
    kEcho,    // the request again: nothing more is to be done
    kAtOnce,  // a person does not want to wait for the orderly stop any more
  };
  struct Decision {
    Meaning meaning = Meaning::kStop;
    std::string why;  // "SIGTERM received from pid 812"
    // The first of a terminal: where it is an echo, the person is to be told so.
    bool is_first_key = false;
  };

  // The time from the first Ctrl-C to one that means "at once": longer than a key is held down, or
  // pressed twice by a nervous hand.
  static constexpr absl::Duration kClearlyLater = absl::Seconds(1);

  Decision Hear(const ReceivedSignal& signal);
  bool made() const { return made_; }
  // A person does not want to wait any more.
  bool at_once() const { return at_once_; }

 private:
  bool made_ = false;
  bool at_once_ = false;
  std::optional<MonotonicTime> first_key_at_;
};

}  // namespace convene
