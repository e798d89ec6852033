#include "launcher/command_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/completion.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/version.h"

namespace convene::launcher {
namespace {

bool IsOneCommand(const Program& program) { return program.commands.size() == 1; }

void AddGeneralFlags(const Program& program, FlagReader* reader);

// The words before the flags: "convene run", "convened".
std::string CalledAs(const Program& program, const Command& command) {
  return IsOneCommand(program) ? program.name : absl::StrCat(program.name, " ", command.name);
}

std::vector<CompletedCommand> CompletedCommands(const Program& program) {
  std::vector<CompletedCommand> commands;
  for (const Command& command : program.commands) {
    FlagReader reader(CalledAs(program, command), command.description, command.rules);
    command.add_flags(&reader);
    AddGeneralFlags(program, &reader);
    commands.push_back(
        {IsOneCommand(program) ? "" : command.name, reader.flags(), reader.takes_rest()});
    if (command.program != nullptr) {
      commands.back().commands = CompletedCommands(command.program());
    }
  }
  return commands;
}

std::string Completion(const Program& program, const std::string& shell) {
  FlagReader reader(program.name, program.description);
  AddGeneralFlags(program, &reader);
  return CompletionScript(shell, program.name, CompletedCommands(program), reader.flags());
}

void AddGeneralFlags(const Program& program, FlagReader* reader) {
  reader->Group("To print a text and end", /*must_be_whole=*/true);
  reader->Print(
      "help-exit-codes", [](const std::string&) { return ExitCodeTable(); },
      "the meaning of each exit code");
  reader->Print(
      "version",
      [&program](const std::string&) { return absl::StrCat(program.name, " ", kVersion, "\n"); },
      "the version");
  // A shell completes the words of one program, and "convene data" are two words.
  if (absl::StrContains(program.name, " ")) return;
  reader->Print(
      "print-completion",
      [&program](const std::string& shell) { return Completion(program, shell); },
      absl::StrCat("a script that completes the words of ", program.name, " in this shell"),
      {.choices = {"bash", "zsh", "tcsh"}});
}

absl::StatusOr<Call> ReadCommand(const Program& program, const Command& command,
                                 const std::vector<std::string>& arguments,
                                 const EnvironmentLookup& environment) {
  FlagReader reader(CalledAs(program, command), command.description, command.rules);
  Action action = command.add_flags(&reader);
  AddGeneralFlags(program, &reader);
  CONVENE_ASSIGN_OR_RETURN(const auto text, reader.Read(arguments, environment));
  if (text.has_value()) return Call{*text, nullptr};
  return Call{"", std::move(action)};
}

absl::Status UnknownCommand(const Program& program, const std::string& word) {
  std::vector<std::string> known;
  for (const Command& command : program.commands) known.push_back(command.name);
  const std::string nearest = ClosestMatch(word, known);
  return absl::InvalidArgumentError(absl::StrCat(
      program.name, " has no command ", word,
      nearest.empty() ? absl::StrCat("; see `", program.name, " --help`")
                      : absl::StrCat("; did you mean `", program.name, " ", nearest, "`?")));
}

}  // namespace

absl::StatusOr<Call> ReadCall(const Program& program, const std::vector<std::string>& arguments,
                              const EnvironmentLookup& environment) {
  if (IsOneCommand(program)) {
    return ReadCommand(program, program.commands[0], arguments, environment);
  }
  std::vector<std::string> words;
  FlagReader reader(program.name, program.description);
  reader.Rest("COMMAND ...", &words);
  reader.Group(
      absl::StrCat("Commands, each with its own --help (", program.name, " COMMAND --help)"));
  for (const Command& command : program.commands) reader.HelpRow(command.name, command.summary);
  AddGeneralFlags(program, &reader);
  CONVENE_ASSIGN_OR_RETURN(const auto text, reader.Read(arguments, environment));
  if (text.has_value()) return Call{*text, nullptr};
  if (words.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no command; see `", program.name, " --help`"));
  }
  const auto command = std::find_if(program.commands.begin(), program.commands.end(),
                                    [&](const Command& one) { return one.name == words[0]; });
  if (command == program.commands.end()) {
    if (words[0] != "help") return UnknownCommand(program, words[0]);
    if (words.size() == 1) return Call{reader.Help(), nullptr};
    words[0] = words[1];
    words[1] = "--help";
    return ReadCall(program, words, environment);
  }
  words.erase(words.begin());
  return ReadCommand(program, *command, words, environment);
}

Command ProgramRow(const std::string& name, const std::string& summary,
                   const std::string& description, Program (*program)()) {
  const auto add_flags = [program](FlagReader* reader) -> Action {
    const auto words = std::make_shared<std::vector<std::string>>();
    reader->Rest("COMMAND ...", words.get());
    reader->Group(
        absl::StrCat("Commands, each with its own --help (", program().name, " COMMAND --help)"));
    for (const Command& command : program().commands) {
      reader->HelpRow(command.name, command.summary);
    }
    return [words, program]() -> absl::StatusOr<int> {
      CONVENE_ASSIGN_OR_RETURN(const Call call, ReadCall(program(), *words, ProcessEnvironment()));
      if (call.action != nullptr) return call.action();
      std::fputs(call.text.c_str(), stdout);
      return 0;
    };
  };
  return {name, summary, description, {}, add_flags, program};
}

}  // namespace convene::launcher
