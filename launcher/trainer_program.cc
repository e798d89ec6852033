#include "launcher/trainer_program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "launcher/command.h"
#include "tools/base/environment.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {

absl::StatusOr<std::vector<std::string>> TrainerWords(const std::string& program,
                                                      const FlagReader& reader,
                                                      const std::vector<std::string>& words,
                                                      const std::set<std::string>& passed_over) {
  RunFlags run;
  run.command = {"convene-train"};
  CONVENE_ASSIGN_OR_RETURN(
      std::vector<std::string> command,
      ResolveCommand(run, ProcessEnvironment(), OwnDirectory(), CalledDirectory()));
  command.push_back(program);
  for (const auto& [name, value] : reader.given()) {
    if (passed_over.contains(name)) continue;
    const bool is_switch = std::any_of(reader.flags().begin(), reader.flags().end(),
                                       [&name = name](const FlagReader::Flag& flag) {
                                         return flag.name == name && flag.is_switch;
                                       });
    command.push_back(is_switch ? absl::StrCat("--", name) : absl::StrCat("--", name, "=", value));
  }
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

absl::Status BecomeProgram(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  return absl::NotFoundError(absl::StrCat(
      "the program ", words[0], " cannot be started (", std::strerror(errno),
      "): it has the numeric libraries, and belongs beside this program or into a directory of "
      "PATH"));
}

RunFlags WorkersOf(std::vector<std::string> words, const std::string& nproc_per_node) {
  RunFlags run;
  if (!nproc_per_node.empty()) run.nproc_per_node = nproc_per_node;
  run.command = std::move(words);
  run.options.propagate_exit_code = true;
  run.options.log.prefix_template = "";
  run.options.log.shown_local_ranks = {0};
  return run;
}

}  // namespace convene::launcher
