#include "agent/agent.h"

#include <signal.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/node.h"
#include "agent/process/program.h"
#include "tools/base/exit_code.h"

namespace convene::agent {
namespace {

AgentResult UsageError(std::string explanation) {
  return AgentResult{static_cast<int>(ExitCode::kUsage), std::move(explanation)};
}

// "host:port" or "[address]:port".
bool SplitEndpoint(const std::string& endpoint, std::string* host, int* port) {
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(endpoint.substr(colon + 1), port))
    return false;
  *host = endpoint.substr(0, colon);
  if (host->size() > 2 && host->front() == '[' && host->back() == ']') {
    *host = host->substr(1, host->size() - 2);
  }
  return !host->empty() && *port >= 0 && *port < 65536;
}

}  // namespace

AgentResult RunAgent(const AgentOptions& options) {
  if (options.command.empty()) return UsageError("No program to run was given.");
  const char* search_path = std::getenv("PATH");
  const auto program = FindProgram(options.command[0], search_path == nullptr ? "" : search_path);
  if (!program.ok()) return UsageError(std::string(program.status().message()));
  std::string host;
  int port = 0;
  if (!SplitEndpoint(options.endpoint, &host, &port) || (port == 0 && !options.may_host)) {
    return UsageError(absl::StrCat("The rendezvous endpoint \"", options.endpoint,
                                   "\" is not host:port with a port from 1 to 65535."));
  }
  // A reader of our output that goes away is an error of write, not our end.
  signal(SIGPIPE, SIG_IGN);
  Node node(options, *program, host, port);
  const Result result = node.Run();
  return AgentResult{result.exit_code, result.explanation};
}

}  // namespace convene::agent
