#include <algorithm>
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
#include "spdlog/spdlog.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// How long a host name may stay unknown before it counts as a slip of the pen.
constexpr absl::Duration kLocateTimeout = absl::Seconds(15);

absl::Status Locate(JobSpec* spec) {
  CONVENE_ASSIGN_OR_RETURN(const auto place,
                           SplitEndpoint(spec->options.endpoint, "--rdzv-endpoint"));
  const absl::StatusOr<Location> location =
      LocateRendezvous(place.first, std::min(kLocateTimeout, spec->options.connect_timeout));
  CONVENE_RETURN_IF_ERROR(
      Annotate(location.status(), absl::StrCat("--rdzv-endpoint ", spec->options.endpoint)));
  spec->options.may_host = spec->is_host.value_or(location->is_here);
  spec->options.store_host = spec->local_addr.value_or(location->own_address);
  spec->reasons.push_back(absl::StrCat(
      place.first, location->is_here ? " is this machine" : " is another machine", ": this node ",
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
  CONVENE_ASSIGN_OR_RETURN(spec.options.command,
                           ResolveCommand(flags, environment, OwnDirectory()));
  if (!spec.standalone) CONVENE_RETURN_IF_ERROR(Locate(&spec));
  for (const std::string& reason : spec.reasons) spdlog::info("{}", reason);
  const agent::AgentResult result = agent::RunAgent(spec.options);
  if (!result.explanation.empty()) spdlog::error("{}", result.explanation);
  return result.exit_code;
}

}  // namespace convene::launcher
