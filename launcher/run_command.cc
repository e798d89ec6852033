#include <algorithm>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/agent.h"
#include "launcher/command.h"
#include "launcher/commands.h"
#include "launcher/job_spec.h"
#include "launcher/local_address.h"
#include "launcher/machine.h"
#include "rendezvous/net/port_mark.h"
#include "rendezvous/quorum/messages.h"
#include "spdlog/spdlog.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/host_port.h"
#include "tools/base/logging.h"
#include "tools/base/random.h"
#include "tools/base/resource_limits.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// A host name that stays unknown for so long counts as a slip of the pen.
constexpr absl::Duration kLocateTimeout = absl::Seconds(15);

// The threads of the agent itself, of gRPC and of the C library's look-ups.
constexpr int kThreads = 16;
// The descriptors of the agent without workers: loop, signals, session, store, gRPC's listener and
// wake-ups.
constexpr int64_t kOwnFiles = 32;
// Output pipes, log files, pidfd, session.
constexpr int64_t kFilesPerWorker = 8;
// Connections a worker may open to the job's store, when this node hosts it.
constexpr int64_t kConnectionsPerWorker = 4;

// Called before anything is started: gRPC aborts or hangs when it runs out of either.
absl::Status CheckLimits(const rendezvous::Hello& hello) {
  const int64_t least = kOwnFiles + kFilesPerWorker * hello.local_world_size;
  const int64_t nodes = hello.nodes_max;
  const int64_t wanted = least + nodes + kConnectionsPerWorker * nodes * hello.local_world_size;
  CONVENE_RETURN_IF_ERROR(EnsureOpenFiles(least, wanted));
  return CheckThreads(kThreads);
}

// This port belongs to a convened with a memory, which may be down at the moment.
void LeaveToDaemon(int port, JobSpec* spec) {
  const std::optional<std::string> state_dir = rendezvous::PortMark::Find(port);
  if (!state_dir.has_value()) return;
  spec->options.may_host = false;
  spec->reasons.push_back(
      absl::StrCat("port ", port, " belongs to the convened with --state-dir ", *state_dir,
                   ": this node waits for it where it is down. If it is not to come back, remove ",
                   rendezvous::PortMark::PathOf(port), " or give --rdzv-conf is_host=1"));
}

absl::Status Locate(absl::Duration patience, JobSpec* spec) {
  CONVENE_ASSIGN_OR_RETURN(const auto place, ParseHostPort(spec->options.endpoint, std::nullopt));
  const absl::StatusOr<Location> location =
      LocateRendezvous(place.host, std::min(patience, spec->options.connect_timeout));
  CONVENE_RETURN_IF_ERROR(
      Annotate(location.status(), absl::StrCat("--rdzv-endpoint ", spec->options.endpoint)));
  spec->options.may_host = spec->is_host.value_or(location->is_here);
  if (location->is_here && !spec->is_host.has_value()) LeaveToDaemon(place.port, spec);
  const int rank = spec->options.hello.node_rank;
  if (spec->is_static && (rank == 0 || (rank < 0 && location->is_here))) {
    spec->options.store_host = place.host;
    spec->reasons.push_back(absl::StrCat("workers are told MASTER_ADDR=", place.host));
    return absl::OkStatus();
  }
  spec->options.store_host = spec->local_addr.value_or(location->own_address);
  spec->options.store_host_may_change = !spec->local_addr.has_value() && !location->is_here;
  spec->reasons.push_back(absl::StrCat(
      place.host, location->is_here ? " is this machine" : " is another machine", ": this node ",
      spec->options.may_host ? "serves the rendezvous if nobody does" : "only dials the rendezvous",
      spec->is_host.has_value() ? " (by its rank, or --rdzv-conf is_host)" : ""));
  spec->reasons.push_back(absl::StrCat("others reach this node at ", spec->options.store_host,
                                       spec->local_addr.has_value()
                                           ? ", by --local-addr"
                                           : ", the address on the way to the endpoint"));
  return absl::OkStatus();
}

absl::StatusOr<int> RunJob(const RunFlags& flags) {
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
                           ResolveCommand(flags, environment, OwnDirectory(), CalledDirectory()));
  // As under torchrun, the first node's name may appear minutes after the others (Kubernetes).
  const absl::Duration patience = flags.as_torchrun ? absl::InfiniteDuration() : kLocateTimeout;
  if (!spec.standalone) CONVENE_RETURN_IF_ERROR(Locate(patience, &spec));
  // Under nohup the end of the terminal's session is not the end of the run.
  std::vector<int>& signals = spec.options.ending_signals;
  if (IsIgnored(SIGHUP)) {
    signals.erase(std::remove(signals.begin(), signals.end(), SIGHUP), signals.end());
  }
  // Signals are not blocked earlier: until something is started, a signal has its own effect, even
  // during a look-up.
  BlockSignals(signals);
  if (spec.standalone || spec.options.may_host) {
    const absl::Status loopback = CheckLoopback();
    if (!loopback.ok()) {
      spdlog::error("{}", std::string(loopback.message()));
      return static_cast<int>(ExitCode::kUnfitNode);
    }
  }
  for (const std::string& reason : spec.reasons) spdlog::info("{}", reason);
  const agent::Result result = agent::RunAgent(spec.options);
  if (!result.explanation.empty()) spdlog::error("{}", result.explanation);
  FlushLog();
  return result.exit_code;
}

}  // namespace

absl::StatusOr<int> RunCommand(const RunFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const int exit_code, RunJob(flags));
  // torchrun's: 1 for every failure, a signal too, unless the workers' own code was asked for.
  return flags.as_torchrun && !flags.options.propagate_exit_code ? std::min(exit_code, 1)
                                                                 : exit_code;
}

}  // namespace convene::launcher
