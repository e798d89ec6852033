#include "tools/base/signal_names.h"

#include <signal.h>

#include "tools/base/testing/status_testing.h"

namespace convene {
namespace {

TEST_CASE("signals are read by name, with or without SIG, spaces and repetitions") {
  CHECK(ParseSignals("SIGTERM, usr1,SIGTERM,").value() == std::vector<int>{SIGTERM, SIGUSR1});
}

TEST_CASE("a signal's name is the one that a shell shows, else its number") {
  CHECK(SignalName(SIGKILL) == "SIGKILL");
  CHECK(SignalName(77) == "signal 77");
}

TEST_CASE("every signal that is taken by name has that name") {
  for (const char* name :
       {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU",
        "SIGXFSZ", "SIGPWR", "SIGIO", "SIGURG", "SIGPROF", "SIGVTALRM", "SIGWINCH"}) {
    const auto signals = ParseSignals(name);
    REQUIRE_OK(signals);
    CHECK(SignalName(signals->at(0)) == name);
  }
}

TEST_CASE("what cannot be handled is refused with what can") {
  for (const char* bad : {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGCHLD", "SIGPIPE", "SIGFOO", "9"}) {
    CHECK_STATUS(ParseSignals(bad), absl::StatusCode::kInvalidArgument, "SIGUSR1");
  }
  CHECK_STATUS(ParseSignals(" ,"), absl::StatusCode::kInvalidArgument, "names no signal");
}

}  // namespace
}  // namespace convene
