#include "tools/base/stop_request.h"

#include <signal.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/signal_names.h"

namespace convene {
namespace {

bool IsKey(const ReceivedSignal& signal) {
  return signal.from_kernel && (signal.number == SIGINT || signal.number == SIGQUIT);
}

std::string Description(const ReceivedSignal& signal) {
  std::string text = SignalName(signal.number) + " received";
  if (IsKey(signal)) {
    absl::StrAppend(&text, " from the terminal");
  } else if (signal.sender > 0) {
    absl::StrAppend(&text, " from pid ", signal.sender);
  }
  return text;
}

}  // namespace

ReceivedSignal SignalOf(const signalfd_siginfo& info) {
  return {static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL,
          static_cast<pid_t>(info.ssi_pid), Clock::Real().Now()};
}

StopRequest::Decision StopRequest::Hear(const ReceivedSignal& signal) {
  std::string what = Description(signal);
  const bool is_key = IsKey(signal);
  const bool is_second_key = is_key && first_key_at_.has_value();
  if (is_key && !is_second_key) first_key_at_ = signal.at;
  if (is_second_key && signal.at - *first_key_at_ >= kClearlyLater) {
    at_once_ = true;
    return {Meaning::kAtOnce, absl::StrCat(what, " a second time: at once")};
  }
  const bool is_echo = std::exchange(made_, true);
  if (is_echo) absl::StrAppend(&what, ", but the stop was requested before");
  const bool is_first_key = is_key && !is_second_key;
  if (is_first_key) {
    absl::StrAppend(&what, "; Ctrl-C once more, after a second or later, stops at once");
  }
  return {is_echo ? Meaning::kEcho : Meaning::kStop, std::move(what), is_first_key};
}

}  // namespace convene
