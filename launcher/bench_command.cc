#include "launcher/bench_command.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

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

constexpr char kOwnFlag[] = "nproc-per-node";

absl::StatusOr<int> BenchCommand(std::vector<std::string> words, const std::string& nproc) {
  // A launcher has given this process its rank.
  if (ProcessEnvironment()("RANK").has_value()) return BecomeProgram(std::move(words));
  spdlog::set_level(spdlog::level::warn);
  // Under a scheduler its variables tell the nodes; without one there is this machine.
  return RunCommand(WorkersOf(std::move(words), nproc));
}

}  // namespace

Command BenchRow() {
  const auto add_flags = [](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<worker::BenchFlags>();
    const auto words = std::make_shared<absl::StatusOr<std::vector<std::string>>>();
    worker::AddFlags(reader, flags.get());
    reader->Check([flags, words, reader] {
      *words = TrainerWords("bench", *reader, flags->operations, kOwnFlag);
      return absl::OkStatus();
    });
    return [flags, words]() -> absl::StatusOr<int> {
      CONVENE_RETURN_IF_ERROR(words->status());
      return BenchCommand(**words, flags->nproc_per_node);
    };
  };
  return {"bench",
          "time collectives between ranks, and links between nodes",
          worker::kBenchHelp,
          {},
          add_flags};
}

}  // namespace convene::launcher
