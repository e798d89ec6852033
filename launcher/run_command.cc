#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/agent.h"
#include "launcher/command.h"
#include "launcher/commands.h"
#include "launcher/environment.h"
#include "launcher/job_spec.h"
#include "launcher/local_address.h"
#include "launcher/machine.h"
#include "rendezvous/quorum/messages.h"
#include "spdlog/spdlog.h"
#include "tools/base/exit_code.h"
#include "tools/base/host_port.h"
#include "tools/base/random.h"
#include "tools/base/resource_limits.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// How long a host name may stay unknown before it counts as a slip of the pen.
constexpr absl::Duration kLocateTimeout = absl::Seconds(15);

// What the agent itself, gRPC and the C library's look-ups start.
constexpr int kThreads = 16;
// Of the agent without workers: loop, signals, session, store, gRPC's listener and wake-ups.
constexpr int64_t kOwnFiles = 32;
// Output pipes, log files, pidfd, session.
constexpr int64_t kFilesPerWorker = 8;
// Connections a worker may open to the job's store, when this node hosts it.
constexpr int64_t kConnectionsPerWorker = 4;

// Before anything is started: gRPC aborts or hangs when it runs out of either.
absl::Status CheckLimits(const rendezvous::Hello& hello) {
  const int64_t least = kOwnFiles + kFilesPerWorker * hello.local_world_size;
  const int64_t nodes = hello.nodes_max;
  const int64_t wanted = least + nodes + kConnectionsPerWorker * nodes * hello.local_world_size;
  CONVENE_RETURN_IF_ERROR(EnsureOpenFiles(least, wanted));
  return CheckThreads(kThreads);
}

absl::Status Locate(JobSpec* spec) {
  CONVENE_ASSIGN_OR_RETURN(const auto place, ParseHostPort(spec->options.endpoint, std::nullopt));
  const absl::StatusOr<Location> location =
      LocateRendezvous(place.host, std::min(kLocateTimeout, spec->options.connect_timeout));
  CONVENE_RETURN_IF_ERROR(
      Annotate(location.status(), absl::StrCat("--rdzv-endpoint ", spec->options.endpoint)));
  spec->options.may_host = spec->is_host.value_or(location->is_here);
  spec->options.store_host = spec->local_addr.value_or(location->own_address);
  spec->reasons.push_back(absl::StrCat(
      place.host, location->is_here ? " is this machine" : " is another machine", ": this node ",
      spec->options.may_host ? "serves the rendezvous if nobody does" : "only dials the rendezvous",
      spec->is_host.has_value() ? " (--rdzv-conf is_host)" : ""));
  spec->reasons.push_back(absl::StrCat("others reach this node at ", spec->options.store_host,
                                       spec->local_addr.has_value()
                                           ? ", by --local-addr"
                                           : ", the address on the way to the endpoint"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> RunCommand(const RunFlags& flags) {
  const EnvironmentLookup environment = ProcessEnvironment();
  CONVENE_ASSIGN_OR_RETURN(JobSpec spec,
                           MakeJobSpec(flags, environment, InspectMachine(environment),
                                       absl::StrFormat("%016x", RandomU64())));
  const absl::Status limits = CheckLimits(spec.options.hello);
  if (absl::IsResourceExhausted(limits)) {
    spdlog::error("{}", std::string(limits.message()));
    return static_cast<int>(ExitCode::kUnfitNode);
  }
  CONVENE_RETURN_IF_ERROR(limits);
  CONVENE_ASSIGN_OR_RETURN(spec.options.command,
                           ResolveCommand(flags, environment, OwnDirectory()));
  if (!spec.standalone) CONVENE_RETURN_IF_ERROR(Locate(&spec));
  for (const std::string& reason : spec.reasons) spdlog::info("{}", reason);
  const agent::AgentResult result = agent::RunAgent(spec.options);
  if (!result.explanation.empty()) spdlog::error("{}", result.explanation);
  return result.exit_code;
}

}  // namespace convene::launcher
