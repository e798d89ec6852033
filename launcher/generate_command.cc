#include "launcher/generate_command.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/commands.h"
#include "launcher/flags.h"
#include "launcher/trainer_program.h"
#include "rendezvous/lock/token.h"
#include "spdlog/spdlog.h"
#include "tools/base/flag_reader.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/inference/generate_flags.h"

namespace convene::launcher {
namespace {

int ProcessesOf(const worker::GenerateFlags& flags) {
  return flags.model.tp_size * flags.model.pp_size;
}
int ProcessesOf(const worker::EvaluateFlags&) { return 1; }

// Several processes are the workers of a job on this machine, of which rank 0 answers.
absl::StatusOr<int> BecomeTrainer(std::vector<std::string> words, int processes) {
  rendezvous::TakeTokenVariable();  // No worker gets it, and this job stays on this machine.
  if (processes == 1) return BecomeProgram(std::move(words));
  RunFlags run = WorkersOf(std::move(words), absl::StrCat(processes));
  run.standalone = true;
  spdlog::set_level(spdlog::level::warn);
  return RunCommand(run);
}

template <typename Flags>
Command ModelRow(const std::string& name, const std::string& summary, const std::string& help) {
  const auto add_flags = [name](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<Flags>();
    const auto words = std::make_shared<absl::StatusOr<std::vector<std::string>>>();
    worker::AddFlags(reader, flags.get());
    reader->Check([name, words, reader] {
      *words = TrainerWords(name, *reader, {});
      return absl::OkStatus();
    });
    return [flags, words]() -> absl::StatusOr<int> {
      CONVENE_RETURN_IF_ERROR(words->status());
      return BecomeTrainer(**words, ProcessesOf(*flags));
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
