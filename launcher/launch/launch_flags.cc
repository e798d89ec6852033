#include "launcher/launch/launch_flags.h"

#include <algorithm>
#include <set>

#include "rendezvous/quorum/messages.h"

namespace convene::launcher {
namespace {

// None of these takes its value from PET_ variables: those are of `convene run`.
FlagDetails Details(const std::string& value) {
  return {.value = value, .from_environment = false};
}

FlagDetails Count(double most) {
  return {.value = "N", .least = 1, .most = most, .from_environment = false};
}

void AddHostFlags(FlagReader* reader, LaunchFlags* flags) {
  reader->Group("Hosts, and the way to them", true);
  reader->Option(
      "hostfile", &flags->hostfile,
      "a line a host: `n1 slots=8`, `n1:8` or `n1` (default: the hosts of the PBS or LSF "
      "job that this runs in). The first host serves the rendezvous",
      Details("FILE"));
  reader->Option("include", &flags->choice.include,
                 "only these hosts, and only these slots of them; slots become "
                 "CUDA_VISIBLE_DEVICES there",
                 Details("HOST[:SLOT,...][@HOST...]"));
  reader->Option("exclude", &flags->choice.exclude, "all but these hosts, or these slots of them",
                 Details("HOST[:SLOT,...][@HOST...]"));
  reader->Option("num-nodes", &flags->choice.num_nodes, "only the first N hosts",
                 Count(rendezvous::kMostNodesPerJob));
  reader->Option("num-gpus", &flags->choice.num_gpus, "only the first N slots of each host",
                 Count(rendezvous::kMostWorkersPerNode));
  reader->Option("ssh-port", &flags->ssh_port, "port of sshd on the hosts (default: ssh's)",
                 {.value = "PORT", .least = 1, .most = 65535, .from_environment = false});
  reader->Option(
      "ssh-options", &flags->ssh_options,
      "more words for ssh: --ssh-options='-i KEY'; words with spaces belong into ~/.ssh/config",
      Details("WORDS"));
  reader->Option("ssh-command", &flags->ssh_command,
                 "program that runs a command on a host, called as WORDS HOST COMMAND, in place of "
                 "ssh (LSF: blaunch)",
                 Details("WORDS"));
  reader->Option("convene", &flags->convene_program,
                 "path of convene on the hosts (default: this program's own)", Details("PATH"));
  reader->Custom(
      "export",
      [flags](const std::string& text) {
        flags->exports.push_back(text);
        return absl::OkStatus();
      },
      "hand on this variable, beside those that begin with NCCL_, CUDA_, PYTHON, CONVENE_, MV2_, "
      "UCX_, MLFLOW_ and the lines of .deepspeed_env here and in $HOME; may be repeated",
      Details("NAME[=VALUE]"));
  reader->Option("link-timeout", &flags->link_timeout,
                 "a link to a host that is silent for so long is lost: the agent there ends, and "
                 "this command dials again (default 60)",
                 {.value = "SECONDS", .least = 1, .from_environment = false});
  reader->Switch("open-door", &flags->open_door,
                 "make no join token: everyone who reaches the first host's port joins, reads and "
                 "looks (default: a token for this run, which convene status, logs, events and "
                 "incidents find in this home directory)",
                 {.from_environment = false});
}

}  // namespace

void AddFlags(FlagReader* reader, LaunchFlags* flags) {
  AddHostFlags(reader, flags);
  std::set<std::string> own;
  for (const FlagReader::Flag& flag : reader->flags()) own.insert(flag.name);
  AddFlags(reader, &flags->run);
  reader->Check([reader, flags, own]() -> absl::Status {
    for (const auto& [name, value] : reader->given()) {
      if (own.count(name) == 0) flags->given_run_flags.emplace_back(name, value);
    }
    return absl::OkStatus();
  });
}

bool WasGiven(const LaunchFlags& flags, absl::string_view name) {
  return std::any_of(flags.given_run_flags.begin(), flags.given_run_flags.end(),
                     [&](const auto& given) { return given.first == name; });
}

}  // namespace convene::launcher
