#include "launcher/slurm_address.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/custody/bounded_command.h"
#include "agent/custody/program.h"
#include "agent/workers/environment.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/clock.h"
#include "tools/base/environment.h"
#include "tools/base/event_loop.h"
#include "tools/base/logging.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kLookUpTimeout = absl::Seconds(5);
constexpr absl::Duration kScontrolTimeout = absl::Seconds(8);
constexpr size_t kBytesKept = 16384;

bool Resolves(const std::string& host) {
  return rendezvous::ResolveHost(host, kLookUpTimeout).ok();
}

// The line that scontrol prints about the node.
absl::StatusOr<std::string> AskScontrol(const std::string& node) {
  const std::string path = ProcessEnvironment()("PATH").value_or("/usr/bin:/bin");
  agent::BoundedCommand::Request request;
  CONVENE_ASSIGN_OR_RETURN(request.spawn.program, agent::FindProgram("scontrol", path));
  request.spawn.arguments = {"scontrol", "-o", "show", "node", node};
  request.spawn.environment = agent::EnvironmentStrings(agent::ParseEnvironment(environ));
  request.timeout = kScontrolTimeout;
  request.first_bytes = kBytesKept;
  EventLoop loop;
  std::optional<agent::BoundedCommand::Outcome> outcome;
  CONVENE_ASSIGN_OR_RETURN(
      const auto command,
      agent::BoundedCommand::Start(loop, request, [&](agent::BoundedCommand::Outcome ended) {
        outcome = std::move(ended);
      }));
  while (!outcome.has_value()) loop.RunOnce(MonotonicTime::InfiniteFuture());
  if (outcome->timed_out) {
    return absl::DeadlineExceededError(
        absl::StrCat("no answer within ", absl::FormatDuration(kScontrolTimeout)));
  }
  return outcome->output;
}

}  // namespace

std::vector<std::string> AddressesOfNode(const std::string& line) {
  std::vector<std::string> found;
  for (const absl::string_view key : {"NodeAddr=", "NodeHostName="}) {
    for (absl::string_view word : absl::StrSplit(line, absl::ByAnyChar(" \t\n"))) {
      if (absl::ConsumePrefix(&word, key) && !word.empty()) found.emplace_back(word);
    }
  }
  return found;
}

absl::StatusOr<std::string> ResolvableSlurmHost(const std::string& name, bool is_this_node,
                                                absl::Duration spread) {
  if (Resolves(name)) return name;
  if (is_this_node && Resolves(HostName())) return HostName();
  if (!is_this_node) Clock::Real().SleepFor(spread * RandomFraction());
  const absl::StatusOr<std::string> answer = AskScontrol(name);
  const std::vector<std::string> addresses =
      answer.ok() ? AddressesOfNode(*answer) : std::vector<std::string>();
  for (const std::string& address : addresses) {
    if (Resolves(address)) return address;
  }
  std::string told = absl::StrCat("it tells ", absl::StrJoin(addresses, " and "));
  if (addresses.empty()) told = "it tells no NodeAddr";
  if (!answer.ok()) told = std::string(answer.status().message());
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name,
      "\" is Slurm's name of the node where the others are to meet, but the name "
      "service of ",
      HostName(), " does not know it, and `scontrol show node ", name, "` does not help (", told,
      "). Give its address yourself: --rdzv-endpoint ADDRESS:PORT; `srun "
      "-w ",
      name, " hostname -I` shows the addresses of the node"));
}

}  // namespace convene::launcher
