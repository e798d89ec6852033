#include "launcher/generate_command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/command.h"
#include "launcher/commands.h"
#include "launcher/flags.h"
#include "spdlog/spdlog.h"
#include "tools/base/environment.h"
#include "tools/base/flag_reader.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/inference/generate_flags.h"

namespace convene::launcher {
namespace {

using Given = std::vector<std::pair<std::string, std::string>>;

int ProcessesOf(const worker::GenerateFlags& flags) {
  return flags.model.tp_size * flags.model.pp_size;
}
int ProcessesOf(const worker::EvaluateFlags&) { return 1; }

// The trainer's program as so many workers of a job on this machine, of which rank 0 answers.
absl::StatusOr<int> RunWorkers(std::vector<std::string> command, int processes) {
  RunFlags run;
  run.standalone = true;
  run.nproc_per_node = absl::StrCat(processes);
  run.command = std::move(command);
  run.options.log.prefix_template = "";
  run.options.log.shown_local_ranks = {0};
  spdlog::set_level(spdlog::level::warn);
  return RunCommand(run);
}

// `program`: the word by which the trainer's program becomes another one.
absl::StatusOr<int> BecomeTrainer(const std::string& program, const Given& flags,
                                  const std::vector<std::string>& switches, int processes) {
  RunFlags run;
  run.command = {"convene-train"};
  CONVENE_ASSIGN_OR_RETURN(
      std::vector<std::string> words,
      ResolveCommand(run, ProcessEnvironment(), OwnDirectory(), CalledDirectory()));
  words.push_back(program);
  for (const auto& [name, value] : flags) {
    const bool is_switch = std::find(switches.begin(), switches.end(), name) != switches.end();
    words.push_back(is_switch ? absl::StrCat("--", name) : absl::StrCat("--", name, "=", value));
  }
  if (processes > 1) return RunWorkers(std::move(words), processes);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  return absl::NotFoundError(absl::StrCat(
      "the program ", words[0], " cannot be started (", std::strerror(errno),
      "): it has the model, and belongs beside this program or into a directory of PATH"));
}

template <typename Flags>
Command ModelRow(const std::string& name, const std::string& summary, const std::string& help) {
  const auto add_flags = [name](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<Flags>();
    const auto given = std::make_shared<Given>();
    const auto switches = std::make_shared<std::vector<std::string>>();
    worker::AddFlags(reader, flags.get());
    reader->Check([flags, given, switches, reader] {
      *given = reader->given();
      for (const FlagReader::Flag& flag : reader->flags()) {
        if (flag.is_switch) switches->push_back(flag.name);
      }
      return absl::OkStatus();
    });
    return [name, flags, given, switches] {
      return BecomeTrainer(name, *given, *switches, ProcessesOf(*flags));
    };
  };
  return {name, summary, help, {}, add_flags};
}

}  // namespace

Command GenerateRow() {
  return ModelRow<worker::GenerateFlags>("generate", "go on with texts, in a model's words",
                                         worker::kGenerateHelp);
}

Command EvaluateRow() {
  return ModelRow<worker::EvaluateFlags>("evaluate", "measure a model on texts and questions",
                                         worker::kEvaluateHelp);
}

}  // namespace convene::launcher
