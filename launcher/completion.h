// PURE. A shell's completion script, made from the table of flags.
#pragma once

#include <string>
#include <vector>

#include "launcher/flag_reader.h"

namespace convene::launcher {

// For `program` and the flags of a run; its first word is one of `commands`, where there are some.
// REQUIRES: `shell` is "bash", "zsh" or "tcsh".
std::string CompletionScript(const std::string& shell, const std::string& program,
                             const std::vector<std::string>& commands,
                             const std::vector<FlagReader::Flag>& flags);

}  // namespace convene::launcher
