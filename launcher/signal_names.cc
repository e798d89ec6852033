#include "launcher/signal_names.h"

#include <signal.h>

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace convene::launcher {
namespace {

// Signals that other processes send as requests. KILL and STOP cannot be handled, TSTP and CONT are
// the shell's, and the rest (SEGV, PIPE, CHLD and the like) belong to the process itself.
const std::map<std::string, int>& KnownSignals() {
  static const auto* const known = new std::map<std::string, int>{
      {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},       {"SIGHUP", SIGHUP},    {"SIGQUIT", SIGQUIT},
      {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2},     {"SIGALRM", SIGALRM},  {"SIGXCPU", SIGXCPU},
      {"SIGXFSZ", SIGXFSZ}, {"SIGPWR", SIGPWR},       {"SIGIO", SIGIO},      {"SIGURG", SIGURG},
      {"SIGPROF", SIGPROF}, {"SIGVTALRM", SIGVTALRM}, {"SIGWINCH", SIGWINCH}};
  return *known;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text) {
  std::vector<int> signals;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    std::string name = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(item));
    if (!absl::StartsWith(name, "SIG")) name.insert(0, "SIG");
    const auto found = KnownSignals().find(name);
    if (found == KnownSignals().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, ": ", name,
                       " is no signal that can be handled here; write names such as "
                       "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"));
    }
    if (std::find(signals.begin(), signals.end(), found->second) == signals.end()) {
      signals.push_back(found->second);
    }
  }
  if (!signals.empty()) return signals;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" names no signal; write at least SIGTERM"));
}

}  // namespace convene::launcher
