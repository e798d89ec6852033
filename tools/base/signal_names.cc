#include "tools/base/signal_names.h"

#include <signal.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace convene {
namespace {

// Signals that other processes send as requests. KILL and STOP cannot be handled, TSTP and CONT are
// the shell's, and the rest (SEGV, PIPE, CHLD and the like) belong to the process itself.
constexpr int kHandled[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2,   SIGALRM, SIGXCPU,
                            SIGXFSZ, SIGPWR, SIGIO,  SIGURG,  SIGPROF, SIGVTALRM, SIGWINCH};

}  // namespace

std::string SignalName(int signal) {
  // One number with two names, of which the C library gives SIGPOLL.
  if (signal == SIGIO) return "SIGIO";
  const char* const abbreviation = sigabbrev_np(signal);
  return abbreviation == nullptr ? absl::StrCat("signal ", signal)
                                 : absl::StrCat("SIG", abbreviation);
}

absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text) {
  std::vector<int> signals;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    std::string name = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(item));
    if (!absl::StartsWith(name, "SIG")) name.insert(0, "SIG");
    const auto* const signal = std::find_if(std::begin(kHandled), std::end(kHandled),
                                            [&](int one) { return SignalName(one) == name; });
    if (signal == std::end(kHandled)) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, ": ", name,
                       " is no signal that can be handled here; write names such as "
                       "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"));
    }
    if (std::find(signals.begin(), signals.end(), *signal) == signals.end()) {
      signals.push_back(*signal);
    }
  }
  if (!signals.empty()) return signals;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" names no signal; write at least SIGTERM"));
}

}  // namespace convene
