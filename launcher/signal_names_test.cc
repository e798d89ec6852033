#include "launcher/signal_names.h"

#include <signal.h>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

TEST_CASE("signals are read by name, with or without SIG, spaces and repetitions") {
  CHECK(ParseSignals("SIGTERM, usr1,SIGTERM,").value() == std::vector<int>{SIGTERM, SIGUSR1});
}

TEST_CASE("what cannot be handled is refused with what can") {
  for (const char* bad : {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGCHLD", "SIGPIPE", "SIGFOO", "9"}) {
    CHECK_STATUS(ParseSignals(bad), absl::StatusCode::kInvalidArgument, "SIGUSR1");
  }
  CHECK_STATUS(ParseSignals(" ,"), absl::StatusCode::kInvalidArgument, "names no signal");
}

}  // namespace
}  // namespace convene::launcher
