// The table of commands, and the choice of the command that a command line names.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

// Runs a command to its end and returns the process's exit code by tools/base/exit_code.h. A bad
// status is a failure before anything was started; main() prints it.
using Action = std::function<absl::StatusOr<int>()>;

struct Program;

struct Command {
  std::string name;
  std::string summary;      // its row in `convene --help`
  std::string description;  // the first words of its own help
  FlagReader::Rules rules;
  // Adds the command's flags to `reader`. The action runs when these have been read.
  std::function<Action(FlagReader* reader)> add_flags;
  Program (*program)() = nullptr;  // of ProgramRow: its own commands
};

// A row whose flags are a struct: AddFlags(reader, Flags*) adds them, `run` gets them.
template <typename Flags>
Command CommandRow(const std::string& name, const std::string& summary,
                   const std::string& description, absl::StatusOr<int> (*run)(const Flags&),
                   FlagReader::Rules rules = {}) {
  const auto add_flags = [run](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<Flags>();
    AddFlags(reader, flags.get());
    return [flags, run] { return run(*flags); };
  };
  return {name, summary, description, std::move(rules), add_flags};
}

// The commands of this binary under one of its names.
struct Program {
  std::string name;
  std::string description;
  std::vector<Command> commands;  // the first word says which; a single one is the program itself
};

struct Call {
  std::string text;  // to print, where there is no action
  Action action;
};

// A row with a table of its own: `convene data COMMAND`. Its help lists the commands. The program's
// name, "convene data", begins with that of the program that the row is in, whose completion script
// completes these commands, too.
Command ProgramRow(const std::string& name, const std::string& summary,
                   const std::string& description, Program (*program)());

// `arguments` are argv without argv[0]. Every program and command has --help,
// --help-exit-codes, --version and, but for the commands of a ProgramRow, --print-completion.
// InvalidArgument for anything that is not
// understood; the text names the nearest known flag or command.
absl::StatusOr<Call> ReadCall(const Program& program, const std::vector<std::string>& arguments,
                              const EnvironmentLookup& environment);

}  // namespace convene::launcher
