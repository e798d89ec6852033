#include "launcher/bench_command.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launcher/command.h"
#include "launcher/commands.h"
#include "launcher/flags.h"
#include "launcher/trainer_program.h"
#include "spdlog/spdlog.h"
#include "tools/base/environment.h"
#include "tools/base/flag_reader.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/bench/bench_flags.h"

namespace convene::launcher {
namespace {

absl::StatusOr<int> BenchCommand(std::vector<std::string> words, const std::string& nproc,
                                 const rendezvous::Credentials& credentials) {
  if (HasRank(ProcessEnvironment())) return BecomeProgram(std::move(words));
  spdlog::set_level(spdlog::level::warn);
  // Under a scheduler its variables tell the nodes; without one there is this machine.
  RunFlags run = WorkersOf(std::move(words), nproc);
  run.options.credentials = credentials;
  return RunCommand(run);
}

}  // namespace

Command BenchRow() {
  const auto add_flags = [](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<worker::BenchFlags>();
    const auto words = std::make_shared<absl::StatusOr<std::vector<std::string>>>();
    const auto credentials = std::make_shared<rendezvous::Credentials>();
    worker::AddFlags(reader, flags.get());
    AddCredentialFlags(reader, credentials.get());
    reader->Check([flags, words, reader] {
      static const std::set<std::string> kOwn = {"nproc-per-node", "join-token-file", "tls-cert",
                                                 "tls-key", "tls-ca"};
      *words = TrainerWords("bench", *reader, flags->operations, kOwn);
      return absl::OkStatus();
    });
    return [flags, words, credentials]() -> absl::StatusOr<int> {
      CONVENE_RETURN_IF_ERROR(words->status());
      return BenchCommand(**words, flags->nproc_per_node, *credentials);
    };
  };
  return {"bench",
          "time collectives between ranks, and links between nodes",
          worker::kBenchHelp,
          {},
          add_flags};
}

}  // namespace convene::launcher
