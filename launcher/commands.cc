#include "launcher/commands.h"

#include <string>
#include <vector>

#include "launcher/bench_command.h"
#include "launcher/checkpoint/checkpoint_command.h"
#include "launcher/data/data_command.h"
#include "launcher/doctor/doctor_command.h"
#include "launcher/events/events_command.h"
#include "launcher/generate_command.h"
#include "launcher/incidents/incidents_command.h"
#include "launcher/launch/launch_command.h"
#include "launcher/launch/launched_command.h"
#include "launcher/plan/plan_command.h"
#include "launcher/read_token_command.h"
#include "rendezvous/server/serve.h"
#include "tools/base/environment.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// Runs the rendezvous daemon until a signal that ends a process.
absl::StatusOr<int> ServeCommand(const ServeFlags& flags) {
  const rendezvous::Server::Options options = {.host = flags.host,
                                               .port = flags.port,
                                               .state_dir = flags.state_dir,
                                               .store_bytes_max = flags.store_bytes_max,
                                               .no_store = flags.no_store,
                                               .credentials = flags.credentials};
  if (flags.standby) return rendezvous::ServeByLock(options);
  if (!flags.journal.has_value()) return rendezvous::ServeUntilSignal(options);
  return rendezvous::ServeInTurn(options, *flags.journal, flags.etcd_tls, flags.leader_lease);
}

Command RunRow(bool as_torchrun) {
  return CommandRow(
      "run", "run this node's part of a job",
      "Run this node's part of a job. Underscores may stand for the dashes of a flag, "
      "PET_<FLAG> in the environment sets its default. The first word that is no flag is "
      "the program; what follows it belongs to the program.",
      RunCommand, {.like_argparse = as_torchrun, .variable_prefix = "PET_"});
}

Command LaunchRow() {
  return CommandRow(
      "launch", "start a job on many hosts, over ssh",
      "Start an agent (`convene run`) on each host of a list, over ssh, show their output, "
      "and end all of them when this command ends. All flags of `convene run` may be given, "
      "too; PET_<FLAG> in the environment sets their defaults. The first word that is no "
      "flag is the program; what follows it belongs to the program.",
      LaunchCommand, {.variable_prefix = "PET_"});
}

// `arguments` of `convene run`, as `convene launched` has them from the other side.
absl::StatusOr<int> RunArguments(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {"run"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  CONVENE_ASSIGN_OR_RETURN(const Call call,
                           ReadCall(ProgramCalled("convene"), words, ProcessEnvironment()));
  return call.action();
}

Command LaunchedRow() {
  const auto add_flags = [](FlagReader*) -> Action {
    return [] { return LaunchedCommand(RunArguments); };
  };
  return {"launched",
          "what `convene launch` starts on each host",
          "`convene launch` starts this command on each host, and tells it through its stdin what "
          "to run. It is of no use by hand.",
          {},
          add_flags};
}

Command ServeRow() {
  return CommandRow(
      "serve", "serve the rendezvous by itself (also as `convened`)",
      "The rendezvous daemon of Convene: the agents of a job meet here, and learn which nodes "
      "take part in an epoch, with which ranks. It serves until SIGTERM or SIGINT.",
      ServeCommand);
}

Command StatusRow() {
  return CommandRow(
      "status", "show the jobs of a rendezvous",
      "Show the jobs of a rendezvous, or the one whose --rdzv-id is RUN: nodes, ranks, "
      "epoch, and why.",
      StatusCommand);
}

Command LogsRow() {
  return CommandRow(
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
          {RunRow(false), LaunchRow(), ServeRow(), StatusRow(), LogsRow(), EventsRow(),
           IncidentsRow(), DataRow(), CheckpointRow(), GenerateRow(), EvaluateRow(), BenchRow(),
           DoctorRow(RunCommand), PlanRow(), ReadTokenRow(), LaunchedRow(), PreflightRow()}};
}

}  // namespace convene::launcher
