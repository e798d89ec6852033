#include "launcher/launch/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "launcher/job_spec.h"
#include "launcher/meeting_place.h"
#include "rendezvous/lock/token.h"
#include "rendezvous/net/service_records.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/flag_reader.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/contract/names.h"

namespace convene::launcher {
namespace {

constexpr size_t kMostHostsNamed = 8;

struct RefusedFlag {
  absl::string_view name;
  absl::string_view why;
};
constexpr RefusedFlag kRefused[] = {
    {"standalone", "is one node by itself: use `convene run`"},
    {"node-rank", "is one node's; here the order of the list of hosts counts"},
    {"local-addr", "is one node's; each agent finds its own"},
};

// The run's flags on every host.
struct CommonFlags {
  std::vector<std::string> words;
  std::string endpoint;  // "": the user's own, or there is only one host
  std::string conf;      // --rdzv-conf as given
  std::string run_id;
};

bool IsSwitch(const std::string& name) {
  RunFlags unused;
  FlagReader reader("", "");
  AddFlags(&reader, &unused);
  return std::any_of(reader.flags().begin(), reader.flags().end(),
                     [&](const auto& flag) { return flag.name == name && flag.is_switch; });
}

CommonFlags MakeCommonFlags(const LaunchFlags& flags, const std::vector<LaunchHost>& hosts,
                            const LaunchSurroundings& surroundings) {
  CommonFlags common;
  for (const auto& [name, value] : flags.given_run_flags) {
    bool is_on = false;
    if (!IsSwitch(name)) {
      common.words.push_back(absl::StrCat("--", name, "=", value));
    } else if (ParseValue(value, &is_on).ok() && is_on) {  // a variable's value is any such word
      common.words.push_back("--" + name);
    }
  }
  if (!WasGiven(flags, "nnodes")) common.words.push_back(absl::StrCat("--nnodes=", hosts.size()));
  common.run_id = flags.run.rdzv_id.value_or(surroundings.random_id);
  if (!WasGiven(flags, "rdzv-id")) common.words.push_back("--rdzv-id=" + common.run_id);
  const bool is_alone = hosts.size() == 1 && !WasGiven(flags, "nnodes");
  if (!is_alone && !WasGiven(flags, "rdzv-endpoint") && !WasGiven(flags, "master-addr")) {
    common.endpoint = FormatHostPort(HostOf(hosts[0]), surroundings.random_port);
    common.words.push_back("--rdzv-endpoint=" + common.endpoint);
  }
  common.conf = flags.run.rdzv_conf;
  return common;
}

std::vector<std::string> ArgumentsOf(const LaunchFlags& flags, const CommonFlags& common,
                                     const LaunchHost& host, size_t rank) {
  std::vector<std::string> arguments = common.words;
  arguments.push_back(absl::StrCat("--node-rank=", rank));
  // The first host's name may be one that only ssh knows as this machine's.
  if (!common.endpoint.empty() && !absl::StrContains(common.conf, "is_host")) {
    arguments.push_back(absl::StrCat("--rdzv-conf=", common.conf, common.conf.empty() ? "" : ",",
                                     "is_host=", rank == 0 ? 1 : 0));
  }
  const int workers =
      host.chosen.empty() ? host.slots.value_or(0) : static_cast<int>(host.chosen.size());
  if (workers > 0 && !WasGiven(flags, "nproc-per-node")) {
    arguments.push_back(absl::StrCat("--nproc-per-node=", workers));
  }
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), flags.run.command.begin(), flags.run.command.end());
  return arguments;
}

// As the first host will read them, so that a slip is told once, and here.
absl::StatusOr<JobSpec> CheckArguments(const std::vector<std::string>& arguments) {
  RunFlags run;
  FlagReader reader("convene launch", "");
  AddFlags(&reader, &run);
  const EnvironmentLookup nothing = [](const std::string&) { return std::nullopt; };
  CONVENE_RETURN_IF_ERROR(reader.Read(arguments, nothing).status());
  // Each host looks the service up itself: two daemons stand here for those that it will find.
  if (run.rdzv_endpoint.has_value() && rendezvous::IsService(*run.rdzv_endpoint)) {
    run.rdzv_endpoint = "a,b";
  }
  // The hosts' devices are not known here: each host judges what depends on their number.
  constexpr int kMost = rendezvous::kMostWorkersPerNode;
  const Machine any = {.host_name = "host", .cpus = kMost, .gpus = kMost, .xpus = kMost};
  return MakeJobSpec(run, nothing, any, "id");
}

// Hosts that are this machine under several loopback addresses can meet at one of them.
absl::Status CheckMeetingPlace(const JobSpec& spec, const std::vector<LaunchHost>& hosts) {
  if (spec.standalone || spec.has_standbys) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const HostPort place,
                           ParseHostPort(spec.options.endpoint, std::nullopt));
  const bool is_apart = std::any_of(hosts.begin(), hosts.end(), [](const LaunchHost& host) {
    return !IsThisMachineEverywhere(HostOf(host));
  });
  if (hosts.size() == 1 || !is_apart || !IsThisMachineEverywhere(place.host)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the hosts are to meet at ", spec.options.endpoint, ", and ", place.host,
                   " means each host itself, so that the others would not find it: write the first "
                   "host of the list by the name or the address by which the others reach it, or "
                   "give --rdzv-endpoint ADDRESS:PORT"));
}

absl::Status CheckCount(size_t hosts, const rendezvous::Hello& hello) {
  const auto count = static_cast<int>(hosts);
  if (count < hello.nodes_min) {
    return absl::InvalidArgumentError(absl::StrCat("the job needs ", hello.nodes_min,
                                                   " nodes (--nnodes), and the list has only ",
                                                   count, " host(s)"));
  }
  if (count > hello.nodes_max + hello.spares) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the list has ", count, " hosts, and the job takes ", hello.nodes_max, " (--nnodes) and ",
        hello.spares, " (--spares): raise one of them, or write --num-nodes ", hello.nodes_max));
  }
  return absl::OkStatus();
}

bool NamesCredentials(const LaunchFlags& flags, const LaunchSurroundings& surroundings) {
  const auto is_exported = [&](const char* name) { return surroundings.variables.count(name) > 0; };
  return WasGiven(flags, "join-token-file") || WasGiven(flags, "tls-cert") ||
         is_exported(rendezvous::kTokenVariable) || is_exported("CONVENE_JOIN_TOKEN_FILE") ||
         is_exported("CONVENE_TLS_CERT");
}

SshOptions MakeSshOptions(const LaunchFlags& flags) {
  SshOptions ssh;
  const absl::string_view command = absl::StripAsciiWhitespace(flags.ssh_command);
  if (!command.empty()) ssh.command = std::string(command);
  ssh.options = absl::StrSplit(flags.ssh_options, ' ', absl::SkipWhitespace());
  ssh.port = flags.ssh_port;
  ssh.link_timeout = flags.link_timeout;
  return ssh;
}

}  // namespace

absl::StatusOr<LaunchPlan> MakeLaunchPlan(const LaunchFlags& flags,
                                          const std::vector<LaunchHost>& hosts,
                                          const LaunchSurroundings& surroundings) {
  for (const RefusedFlag& refused : kRefused) {
    if (!WasGiven(flags, refused.name)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", refused.name, " ", refused.why));
  }
  const CommonFlags common = MakeCommonFlags(flags, hosts, surroundings);
  LaunchPlan plan;
  plan.fleet.ssh = MakeSshOptions(flags);
  plan.fleet.program =
      flags.convene_program.empty() ? surroundings.own_program : flags.convene_program;
  const std::string place = flags.run.rdzv_endpoint.value_or(flags.run.master_addr.value_or(""));
  plan.fleet.first_serves =
      !common.endpoint.empty() ||
      (!hosts.empty() && !place.empty() && place.substr(0, place.rfind(':')) == HostOf(hosts[0]));
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const LaunchHost& host = hosts[rank];
    plan.fleet.hosts.push_back(HostOf(host));
    plan.commands.push_back(SshArguments(plan.fleet.ssh, host.name, plan.fleet.program));
    HostTask task;
    task.link_timeout = flags.link_timeout;
    task.name = absl::StrCat(common.run_id, ".", rank);
    task.directory = surroundings.directory;
    Variables variables = surroundings.variables;
    if (!host.chosen.empty()) {
      variables[contract::kCudaVisibleDevices] = absl::StrJoin(host.chosen, ",");
    }
    task.variables.assign(variables.begin(), variables.end());
    task.arguments = ArgumentsOf(flags, common, host, rank);
    plan.tasks.push_back(std::move(task));
  }
  CONVENE_ASSIGN_OR_RETURN(const JobSpec spec, CheckArguments(plan.tasks[0].arguments));
  CONVENE_RETURN_IF_ERROR(CheckCount(hosts.size(), spec.options.hello));
  CONVENE_RETURN_IF_ERROR(CheckMeetingPlace(spec, hosts));
  plan.fleet.nodes_min = spec.options.hello.nodes_min;
  plan.run_id = common.run_id;
  if (!flags.open_door && !common.endpoint.empty() && !NamesCredentials(flags, surroundings)) {
    plan.door = common.endpoint;
  }
  plan.reasons.push_back(absl::StrCat("run ", common.run_id, " on ", hosts.size(),
                                      " host(s): ", JoinCapped(plan.fleet.hosts, kMostHostsNamed)));
  if (plan.fleet.first_serves) {
    plan.reasons.push_back(absl::StrCat("the nodes meet at ", spec.options.endpoint,
                                        ", which the first host serves (--rdzv-endpoint)"));
  }
  return plan;
}

}  // namespace convene::launcher
