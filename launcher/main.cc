// convene: the command line of the launcher; called under the name `torchrun` it behaves as that.
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
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"
#include "tools/base/signals.h"

namespace {

using convene::launcher::CommandLine;
using convene::launcher::LogsFlags;
using convene::launcher::ParseCommandLine;
using convene::launcher::ParseTorchrunCommandLine;
using convene::launcher::ProcessEnvironment;
using convene::launcher::RunFlags;
using convene::launcher::ServeFlags;
using convene::launcher::StatusFlags;
using convene::launcher::TextToPrint;

absl::StatusOr<int> Perform(const CommandLine& line) {
  if (const auto* text = std::get_if<TextToPrint>(&line)) {
    std::fputs(text->text.c_str(), stdout);
    return 0;
  }
  convene::InitLogging("convene", convene::LogReader::kIsNotAwaited);
  if (const auto* run = std::get_if<RunFlags>(&line)) return RunCommand(*run);
  if (const auto* logs = std::get_if<LogsFlags>(&line)) return LogsCommand(*logs);
  convene::BlockSignals({SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  if (const auto* serve = std::get_if<ServeFlags>(&line)) return ServeCommand(*serve);
  return StatusCommand(std::get<StatusFlags>(line));
}

int Report(const char* program, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", program, std::string(status.message()).c_str());
  return static_cast<int>(convene::ExitCodeForStatus(status));
}

int RunAsConvene(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments, ProcessEnvironment());
  if (!line.ok()) return Report("convene", line.status());
  const absl::StatusOr<int> exit_code = Perform(*line);
  return exit_code.ok() ? *exit_code : Report("convene", exit_code.status());
}

// torchrun's exit codes: 2 for a command line that cannot be read, 1 for every other failure
// (a signal too), unless the workers' own code was asked for.
int RunAsTorchrun(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line =
      ParseTorchrunCommandLine(arguments, ProcessEnvironment());
  if (!line.ok()) {
    Report("torchrun", line.status());
    return 2;
  }
  const absl::StatusOr<int> exit_code = Perform(*line);
  if (!exit_code.ok()) {
    Report("torchrun", exit_code.status());
    return absl::IsInvalidArgument(exit_code.status()) ? 2 : 1;
  }
  const auto* run = std::get_if<RunFlags>(&*line);
  const bool as_it_is = *exit_code == 0 || (run != nullptr && run->propagate_exit_code);
  return as_it_is ? *exit_code : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string called = argc > 0 ? argv[0] : "";
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const bool is_torchrun = called.substr(called.rfind('/') + 1) == "torchrun";
  return convene::ExitCodeOfMain(is_torchrun ? "torchrun" : "convene", [&] {
    return is_torchrun ? RunAsTorchrun(arguments) : RunAsConvene(arguments);
  });
}
