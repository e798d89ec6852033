#include "launcher/commands.h"

#include <memory>
#include <utility>

#include "rendezvous/server/serve.h"

namespace convene::launcher {
namespace {

// Runs the rendezvous daemon until a signal that ends a process.
absl::StatusOr<int> ServeCommand(const ServeFlags& flags) {
  return rendezvous::ServeUntilSignal(
      {.host = flags.host, .port = flags.port, .state_dir = flags.state_dir});
}

template <typename Flags>
Command Row(const std::string& name, const std::string& summary, const std::string& description,
            absl::StatusOr<int> (*run)(const Flags&), FlagReader::Rules rules = {}) {
  const auto add_flags = [run](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<Flags>();
    AddFlags(reader, flags.get());
    return [flags, run] { return run(*flags); };
  };
  return {name, summary, description, std::move(rules), add_flags};
}

Command RunRow(bool as_torchrun) {
  return Row("run", "run this node's part of a job",
             "Run this node's part of a job. Underscores may stand for the dashes of a flag, "
             "PET_<FLAG> in the environment sets its default. The first word that is no flag is "
             "the program; what follows it belongs to the program.",
             RunCommand, {.like_argparse = as_torchrun, .variable_prefix = "PET_"});
}

Command ServeRow() {
  return Row("serve", "serve the rendezvous by itself (also as `convened`)",
             "The rendezvous daemon of Convene: the agents of a job meet here, and learn who takes "
             "part in which epoch with which rank. It serves until SIGTERM or SIGINT.",
             ServeCommand);
}

Command StatusRow() {
  return Row("status", "show the jobs of a rendezvous",
             "Show the jobs of a rendezvous, or the one whose --rdzv-id is RUN: nodes, ranks, "
             "epoch, and why.",
             StatusCommand);
}

Command LogsRow() {
  return Row(
      "logs", "show the output of a run's workers, on all its nodes",
      "Show the output of the workers of the run whose --rdzv-id is RUN, on all its nodes: the "
      "last lines, and with -f later ones too.",
      LogsCommand);
}

}  // namespace

Program ProgramCalled(const std::string& name) {
  if (name == kTorchrun) return {name, "", {RunRow(true)}};
  if (name == "convened") return {name, "", {ServeRow()}};
  return {"convene",
          "convene starts a distributed training job on this node and keeps it running. Under the "
          "name `torchrun` (a link) it takes torchrun's command line, which is that of `convene "
          "run`; under the name `convened` it is `convene serve`.",
          {RunRow(false), ServeRow(), StatusRow(), LogsRow()}};
}

}  // namespace convene::launcher
