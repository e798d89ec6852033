// convene: the command line of the launcher.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/commands.h"
#include "launcher/environment.h"
#include "launcher/flags.h"
#include "tools/base/check.h"
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"

namespace {

using convene::launcher::CommandLine;
using convene::launcher::ParseCommandLine;
using convene::launcher::ProcessEnvironment;
using convene::launcher::RunFlags;
using convene::launcher::ServeFlags;
using convene::launcher::StatusFlags;
using convene::launcher::TextToPrint;

// Threads inherit the mask: from here on these signals wait for whoever asks for them.
void BlockEndingSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&ending, signal);
  CONVENE_CHECK(sigprocmask(SIG_BLOCK, &ending, nullptr) == 0);
}

absl::StatusOr<int> Perform(const CommandLine& line) {
  if (const auto* text = std::get_if<TextToPrint>(&line)) {
    std::fputs(text->text.c_str(), stdout);
    return 0;
  }
  // Help needs to be interruptible as usual; what follows has threads.
  BlockEndingSignals();
  convene::InitLogging("convene");
  if (const auto* run = std::get_if<RunFlags>(&line)) return RunCommand(*run);
  if (const auto* serve = std::get_if<ServeFlags>(&line)) return ServeCommand(*serve);
  return StatusCommand(std::get<StatusFlags>(line));
}

absl::StatusOr<int> ParseAndPerform(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments, ProcessEnvironment());
  if (!line.ok()) return line.status();
  return Perform(*line);
}

}  // namespace

int main(int argc, char** argv) {
  const absl::StatusOr<int> exit_code =
      ParseAndPerform(std::vector<std::string>(argv + 1, argv + std::max(argc, 1)));
  if (exit_code.ok()) return *exit_code;
  std::fprintf(stderr, "convene: %s\n", std::string(exit_code.status().message()).c_str());
  return static_cast<int>(convene::ExitCodeForStatus(exit_code.status()));
}
