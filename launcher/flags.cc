#include "launcher/flags.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/completion.h"
#include "launcher/logs_flags.h"
#include "launcher/run_flags.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

constexpr char kVersion[] = "convene 0.1.0\n";

constexpr char kUsage[] =
    R"(convene starts a distributed training job on this node and keeps it running.

  convene run [flags] program [arguments]   run this node's part of a job
  convene serve [flags]                     serve the rendezvous by itself
  convene status [RUN] [flags]              what the jobs of a rendezvous are doing
  convene logs RUN [flags]                  what the workers of a run print, on all its nodes

  convene COMMAND --help     the flags of a command
  convene --help-exit-codes  what each exit code means
  convene --version

Under the name `torchrun` (a link) it takes torchrun's command line, which is that of `convene run`.
)";

std::vector<std::string> Commands() { return {"run", "serve", "status", "logs"}; }

absl::StatusOr<CommandLine> ParseRun(const std::vector<std::string>& arguments,
                                     const EnvironmentLookup& environment, bool as_torchrun) {
  CommandLine line = RunFlags();
  RunFlags& flags = std::get<RunFlags>(line);
  flags.as_torchrun = as_torchrun;
  FlagReader reader(
      "run",
      "Run this node's part of a job. Underscores may stand for the dashes of a flag, "
      "PET_<FLAG> in the environment sets its default. The first word that is no "
      "flag is the program; what follows it belongs to the program.",
      as_torchrun);
  AddTorchrunFlags(&reader, &flags);
  AddOwnFlags(&reader, &flags);
  CONVENE_ASSIGN_OR_RETURN(auto read, reader.Read(arguments, environment));
  if (auto* text = std::get_if<TextToPrint>(&read)) return CommandLine(std::move(*text));
  if (!flags.print_completion.empty()) {
    return CommandLine(TextToPrint{
        CompletionScript(flags.print_completion, as_torchrun ? "torchrun" : "convene",
                         as_torchrun ? std::vector<std::string>() : Commands(), reader.flags())});
  }
  flags.from_environment = reader.from_environment();
  flags.command = std::get<std::vector<std::string>>(std::move(read));
  if (flags.command.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no program to run; write it after the flags: `",
                                                   as_torchrun ? "torchrun" : "convene run",
                                                   " --nproc-per-node 2 train.py`"));
  }
  return line;
}

absl::Status NothingLeft(const std::vector<std::string>& rest, const std::string& command) {
  if (rest.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`convene ", command, "` takes flags only, not \"", rest[0], "\""));
}

absl::StatusOr<CommandLine> ParseServe(const std::vector<std::string>& arguments) {
  ServeFlags flags;
  FlagReader reader("serve", "Serve the rendezvous until SIGTERM or SIGINT.");
  reader.Option("host", &flags.host, "address to bind (default 0.0.0.0)");
  reader.Option("port", &flags.port, "port to bind, 0 for any free one (default 29400)");
  reader.Option("state-dir", &flags.state_dir,
                "directory of the journal: started again with it, the rendezvous goes on with its "
                "jobs");
  CONVENE_ASSIGN_OR_RETURN(auto read, reader.Read(arguments));
  if (auto* text = std::get_if<TextToPrint>(&read)) return CommandLine(std::move(*text));
  CONVENE_RETURN_IF_ERROR(NothingLeft(std::get<std::vector<std::string>>(read), "serve"));
  if (flags.port < 0 || flags.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--port ", flags.port, " is not in 0..65535"));
  }
  return CommandLine(std::move(flags));
}

// The first of these that is set; else this machine.
std::string DefaultEndpoint(const EnvironmentLookup& environment) {
  for (const char* variable : {"CONVENE_ENDPOINT", "PET_RDZV_ENDPOINT"}) {
    std::string endpoint = environment(variable).value_or("");
    if (!endpoint.empty()) return endpoint;
  }
  return "localhost";
}

void AddPlaceFlags(FlagReader* reader, std::string* endpoint, std::string* job_id) {
  reader->Option("endpoint", endpoint,
                 "HOST[:PORT] of the rendezvous (default $CONVENE_ENDPOINT, $PET_RDZV_ENDPOINT, "
                 "localhost:29400)");
  reader->Option("rdzv-id", job_id, "RUN, by its flag");
}

// RUN may stand before the flags and behind them. The help, when it was asked for.
absl::StatusOr<std::optional<TextToPrint>> ReadWithRun(FlagReader* reader,
                                                       std::vector<std::string> arguments,
                                                       std::string* job_id) {
  bool has_run = false;
  for (;;) {
    CONVENE_ASSIGN_OR_RETURN(auto read, reader->Read(arguments));
    if (auto* text = std::get_if<TextToPrint>(&read)) return std::optional(std::move(*text));
    arguments = std::get<std::vector<std::string>>(std::move(read));
    if (arguments.empty()) return std::optional<TextToPrint>();
    if (std::exchange(has_run, true) || !job_id->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("`convene status` and `convene logs` show one run: \"", arguments[0],
                       "\" is one too many"));
    }
    *job_id = arguments[0];
    arguments.erase(arguments.begin());
  }
}

absl::StatusOr<CommandLine> ParseStatus(std::vector<std::string> arguments,
                                        const EnvironmentLookup& environment) {
  StatusFlags flags;
  FlagReader reader("status",
                    "Show the jobs of a rendezvous, or the one whose --rdzv-id is RUN: nodes, "
                    "ranks, epoch, and why. `convene status [RUN] [flags]`");
  AddPlaceFlags(&reader, &flags.endpoint, &flags.job_id);
  reader.Switch("watch", &flags.watch,
                "go on: redraw the screen each second, or print a line for each change when "
                "stdout is no terminal");
  reader.Switch("json", &flags.json, "print it as JSON, on one line");
  CONVENE_ASSIGN_OR_RETURN(auto help, ReadWithRun(&reader, std::move(arguments), &flags.job_id));
  if (help.has_value()) return CommandLine(*std::move(help));
  if (flags.endpoint.empty()) flags.endpoint = DefaultEndpoint(environment);
  return CommandLine(std::move(flags));
}

absl::StatusOr<CommandLine> ParseLogs(std::vector<std::string> arguments,
                                      const EnvironmentLookup& environment) {
  LogsFlagReader logs;
  FlagReader reader("logs",
                    "Show what the workers of the run whose --rdzv-id is RUN print, on all its "
                    "nodes: the last lines, and with -f those that come. "
                    "`convene logs RUN [flags]`");
  AddPlaceFlags(&reader, logs.endpoint(), logs.job_id());
  logs.AddTo(&reader);
  CONVENE_ASSIGN_OR_RETURN(auto help, ReadWithRun(&reader, std::move(arguments), logs.job_id()));
  if (help.has_value()) return CommandLine(*std::move(help));
  CONVENE_ASSIGN_OR_RETURN(LogsFlags flags, logs.Finish());
  if (flags.endpoint.empty()) flags.endpoint = DefaultEndpoint(environment);
  return CommandLine(std::move(flags));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const EnvironmentLookup& environment) {
  if (arguments.empty()) return absl::InvalidArgumentError("no command; see `convene --help`");
  const std::string& command = arguments[0];
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "run") return ParseRun(rest, environment, false);
  if (command == "serve") return ParseServe(rest);
  if (command == "status") return ParseStatus(rest, environment);
  if (command == "logs") return ParseLogs(rest, environment);
  if (command == "--help" || command == "-h" || command == "help") return TextToPrint{kUsage};
  if (command == "--help-exit-codes") return TextToPrint{ExitCodeTable()};
  if (command == "--version") return TextToPrint{kVersion};
  std::vector<std::string> known = Commands();
  known.insert(known.end(), {"--help", "--help-exit-codes", "--version"});
  const std::string nearest = ClosestMatch(command, known);
  return absl::InvalidArgumentError(
      absl::StrCat("convene has no command ", command,
                   nearest.empty() ? "; see `convene --help`"
                                   : absl::StrCat("; did you mean `convene ", nearest, "`?")));
}

absl::StatusOr<CommandLine> ParseTorchrunCommandLine(const std::vector<std::string>& arguments,
                                                     const EnvironmentLookup& environment) {
  return ParseRun(arguments, environment, true);
}

}  // namespace convene::launcher
