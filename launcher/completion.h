// PURE. A shell's completion script, made from the flags of a program's commands.
#pragma once

#include <string>
#include <vector>

#include "tools/base/flag_reader.h"

namespace convene::launcher {

struct CompletedCommand {
  std::string name;  // "": the program itself, which then is the only one
  std::vector<FlagReader::Flag> flags;
  bool takes_program = false;                   // a file may stand behind the flags
  std::vector<CompletedCommand> commands = {};  // its own: `convene data prepare`
};

// The first word of several `commands` is a command's name; `flags` are those that may stand in its
// place. A flag's value without choices is a file's name.
// REQUIRES: `shell` is "bash", "zsh" or "tcsh"; `commands` is not empty.
std::string CompletionScript(const std::string& shell, const std::string& program,
                             const std::vector<CompletedCommand>& commands,
                             const std::vector<FlagReader::Flag>& flags = {});

}  // namespace convene::launcher
