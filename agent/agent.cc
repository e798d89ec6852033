#include "agent/agent.h"

#include <signal.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/custody/program.h"
#include "agent/node.h"
#include "rendezvous/client/places.h"
#include "tools/base/exit_code.h"

namespace convene::agent {
namespace {

Result UsageError(std::string explanation) {
  return {static_cast<int>(ExitCode::kUsage), std::move(explanation)};
}

}  // namespace

Result RunAgent(const AgentOptions& options) {
  if (options.command.empty()) return UsageError("No program to run was given.");
  const char* search_path = std::getenv("PATH");
  const auto program = FindProgram(options.command[0], search_path == nullptr ? "" : search_path);
  if (!program.ok()) return UsageError(std::string(program.status().message()));
  const int least_port = options.may_host ? 0 : 1;
  const auto places = rendezvous::ParsePlaces(options.endpoint, std::nullopt, least_port);
  if (!places.ok()) {
    return UsageError(
        absl::StrCat("The rendezvous endpoint ", std::string(places.status().message()), "."));
  }
  // When the reader of our output goes away, or a file is at its limit (`ulimit -f`), write fails;
  // the process does not end.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  Node node(options, *program, *places);
  return node.Run();
}

}  // namespace convene::agent
