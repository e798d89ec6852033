// Whether somebody asked this worker to finish its step, save and end.
#pragma once

#include <atomic>

namespace convene::worker {

enum class StopReason {
  kNone = 0,
  kMembershipChanged,  // a session's "checkpoint": end with 75, the agent starts us again
  kTerminated,         // a stop signal (session.h): end with 128 + signal
};

// Set by the session's thread, read by the trainer between steps.
class StopToken {
 public:
  // The program reads the token from now on. Before this call a stop ends the process at once: the
  // program has nothing to save and may be waiting for a peer that has ended already.
  void Watch() { is_watched_ = true; }
  bool is_watched() const { return is_watched_; }

  void Request(StopReason reason, int signal_number) {
    signal_ = signal_number;
    reason_ = reason;
  }
  StopReason reason() const { return reason_; }
  int signal_number() const { return signal_; }

 private:
  std::atomic<bool> is_watched_{false};
  std::atomic<StopReason> reason_{StopReason::kNone};
  std::atomic<int> signal_{0};
};

}  // namespace convene::worker
