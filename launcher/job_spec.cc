#include "launcher/job_spec.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "launcher/environment_detection.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/contract/names.h"

namespace convene::launcher {
namespace {

constexpr size_t kNameBytesMax = 256;  // as the daemon allows
constexpr absl::Duration kLeaseMin = absl::Seconds(1);
constexpr absl::Duration kLeaseMax = absl::Hours(1);
// torchrun's: what the other half of the pair is when only one is given.
constexpr double kKeepAliveIntervalSeconds = 5;
constexpr int kKeepAliveAttempts = 3;

absl::Status ParseNodes(const std::string& text, rendezvous::Hello* hello) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() > 2 || !absl::SimpleAtoi(parts.front(), &hello->nodes_min) ||
      !absl::SimpleAtoi(parts.back(), &hello->nodes_max) || hello->nodes_min < 1 ||
      hello->nodes_max > rendezvous::kMostNodesPerJob) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nnodes ", text, ": write N or MIN:MAX, from 1 to ", rendezvous::kMostNodesPerJob));
  }
  if (hello->nodes_min > hello->nodes_max) {
    return absl::InvalidArgumentError(absl::StrCat("--nnodes ", text,
                                                   ": MIN is larger than MAX; write ",
                                                   hello->nodes_max, ":", hello->nodes_min));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ParseWorkers(const std::string& text, const Machine& machine, JobSpec* spec) {
  if (text == "cpu") return machine.cpus;
  if (text == "gpu" && machine.gpus == 0) {
    return absl::InvalidArgumentError(
        "--nproc-per-node gpu: this node shows no GPU (/dev/nvidia*, CUDA_VISIBLE_DEVICES); write "
        "a number or cpu");
  }
  if (text == "gpu") return machine.gpus;
  if (text == "auto") {
    const bool gpus = machine.gpus > 0;
    const int workers = gpus ? machine.gpus : machine.cpus;
    spec->reasons.push_back(absl::StrCat(workers,
                                         " workers, by --nproc-per-node auto: one for each ",
                                         gpus ? "GPU" : "CPU, since there is no GPU"));
    return workers;
  }
  int workers = 0;
  if (!absl::SimpleAtoi(text, &workers) || workers < 1 ||
      workers > rendezvous::kMostWorkersPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nproc-per-node ", text, ": write a number from 1 to ",
                     rendezvous::kMostWorkersPerNode, ", gpu, cpu or auto"));
  }
  return workers;
}

using Settings = std::map<std::string, std::string>;

absl::StatusOr<Settings> ParseRendezvousConf(const std::string& text, JobSpec* spec) {
  static const std::vector<std::string>* const known =
      new std::vector<std::string>{"join_timeout", "last_call_timeout", "keep_alive_interval",
                                   "keep_alive_max_attempt", "is_host"};
  static const std::vector<std::string>* const without_effect = new std::vector<std::string>{
      "close_timeout", "heartbeat_timeout", "read_timeout", "store_type", "timeout"};
  Settings settings;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(absl::StripAsciiWhitespace(item), absl::MaxSplits('=', 1));
    const auto is = [&](const std::vector<std::string>& keys) {
      return std::find(keys.begin(), keys.end(), pair.first) != keys.end();
    };
    if (is(*without_effect)) {
      spec->reasons.push_back(absl::StrCat("--rdzv-conf ", item, " has no effect here"));
    } else if (!is(*known)) {
      const std::string nearest = ClosestMatch(pair.first, *known);
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv-conf: unknown key \"", pair.first, "\"; ",
                       nearest.empty() ? "known are " + JoinCapped(*known, known->size())
                                       : absl::StrCat("did you mean ", nearest, "?")));
    } else if (pair.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--rdzv-conf: ", pair.first, " needs =VALUE"));
    } else {
      settings[pair.first] = pair.second;
    }
  }
  return settings;
}

absl::StatusOr<double> SettingNumber(const Settings& settings, const std::string& key,
                                     double fallback, double minimum) {
  const auto setting = settings.find(key);
  if (setting == settings.end()) return fallback;
  double number = 0;
  if (!absl::SimpleAtod(setting->second, &number) || !(number >= minimum) || number > 1e9) {
    return absl::InvalidArgumentError(absl::StrCat("--rdzv-conf: ", key, "=", setting->second,
                                                   " must be a number of at least ", minimum));
  }
  return number;
}

absl::Status ApplyKeepAlive(const Settings& settings, rendezvous::Hello* hello) {
  if (!settings.count("keep_alive_interval") && !settings.count("keep_alive_max_attempt")) {
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(const double interval, SettingNumber(settings, "keep_alive_interval",
                                                                kKeepAliveIntervalSeconds, 0));
  // With one attempt a single late heartbeat would be a death.
  CONVENE_ASSIGN_OR_RETURN(const double attempts, SettingNumber(settings, "keep_alive_max_attempt",
                                                                kKeepAliveAttempts, 2));
  hello->lease = absl::Seconds(interval * attempts);
  if (hello->lease < kLeaseMin || hello->lease > kLeaseMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-conf: keep_alive_interval x keep_alive_max_attempt is ",
                     absl::FormatDuration(hello->lease),
                     "; a silent node is lost after that time, so choose from ",
                     absl::FormatDuration(kLeaseMin), " to ", absl::FormatDuration(kLeaseMax)));
  }
  return absl::OkStatus();
}

absl::Status ApplyRendezvousConf(const RunFlags& flags, JobSpec* spec) {
  CONVENE_ASSIGN_OR_RETURN(const Settings settings, ParseRendezvousConf(flags.rdzv_conf, spec));
  rendezvous::Hello& hello = spec->options.hello;
  CONVENE_ASSIGN_OR_RETURN(
      const double join_seconds,
      SettingNumber(settings, "join_timeout", absl::ToDoubleSeconds(hello.join_timeout), 0.001));
  CONVENE_ASSIGN_OR_RETURN(
      const double last_call_seconds,
      SettingNumber(settings, "last_call_timeout", absl::ToDoubleSeconds(hello.last_call), 0));
  hello.join_timeout = absl::Seconds(join_seconds);
  hello.last_call = absl::Seconds(last_call_seconds);
  if (settings.count("join_timeout") && !settings.count("last_call_timeout")) {
    hello.last_call = std::min(hello.last_call, hello.join_timeout);
  }
  if (hello.last_call > hello.join_timeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rdzv-conf: last_call_timeout (", absl::FormatDuration(hello.last_call),
        ") is longer than join_timeout (", absl::FormatDuration(hello.join_timeout),
        "): the job would give up before it starts; lower the first or raise the second"));
  }
  CONVENE_RETURN_IF_ERROR(ApplyKeepAlive(settings, &hello));
  if (const auto is_host = settings.find("is_host"); is_host != settings.end()) {
    bool value = false;
    if (!absl::SimpleAtob(is_host->second, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv-conf: is_host=", is_host->second, " must be true or false"));
    }
    spec->is_host = value;
  }
  spec->options.connect_timeout = std::min(spec->options.connect_timeout, hello.join_timeout);
  return absl::OkStatus();
}

absl::Status CheckSimpleFlags(const RunFlags& flags) {
  static const std::vector<std::string>* const backends =
      new std::vector<std::string>{"convene", "c10d", "static"};
  if (std::find(backends->begin(), backends->end(), flags.rdzv_backend) == backends->end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rdzv-backend ", flags.rdzv_backend,
                     ": write convene, c10d or static (all mean Convene's own rendezvous)"));
  }
  if (flags.max_restarts < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-restarts ", flags.max_restarts, ": write 0 or more"));
  }
  if (flags.node_rank.value_or(0) < 0 ||
      flags.node_rank.value_or(0) >= rendezvous::kMostNodesPerJob) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank ", *flags.node_rank, ": write a number from 0"));
  }
  const int master_port = flags.master_port.value_or(0);
  if (master_port < 0 || master_port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master-port ", master_port, ": write a port in 1..65535, or 0 for any"));
  }
  const double grace = flags.shutdown_timeout_seconds.value_or(30);
  if (!(grace >= 0 && grace <= 86400)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--shutdown-timeout ", grace, ": write seconds from 0 to 86400"));
  }
  if (flags.module && flags.no_python) {
    return absl::InvalidArgumentError(
        "--module runs under Python and --no-python does not: leave one out");
  }
  return absl::OkStatus();
}

absl::Status CheckStandalone(const RunFlags& flags, const rendezvous::Hello& hello) {
  if (flags.rdzv_endpoint.has_value() || flags.master_addr.has_value()) {
    return absl::InvalidArgumentError(
        "--standalone is one node by itself, --rdzv-endpoint and --master-addr are where several "
        "meet: leave one out (PET_ variables count)");
  }
  if (hello.nodes_max > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--standalone is one node by itself, but --nnodes says ", hello.nodes_max,
                     ": leave one out"));
  }
  return absl::OkStatus();
}

// Nodes, rank and id by flags, else by the scheduler.
absl::Status ApplyDetected(const RunFlags& flags, const DetectedJob& detected, JobSpec* spec) {
  rendezvous::Hello& hello = spec->options.hello;
  if (!flags.nnodes.has_value() && detected.nodes.has_value()) {
    CONVENE_RETURN_IF_ERROR(ParseNodes(absl::StrCat(*detected.nodes), &hello));
  }
  const int nodes = detected.nodes.value_or(0);
  if (nodes >= hello.nodes_min && nodes <= hello.nodes_max) hello.nodes_expected = nodes;
  hello.node_rank = flags.node_rank.value_or(detected.node_rank.value_or(-1));
  hello.job_id = flags.rdzv_id.value_or(detected.job_id.value_or("none"));
  spec->reasons.insert(spec->reasons.end(), detected.reasons.begin(), detected.reasons.end());
  return absl::OkStatus();
}

// One port is not two: the rendezvous and the workers' store would collide on the node that hosts
// both.
absl::Status CheckPorts(const RunFlags& flags, int endpoint_port) {
  if (flags.master_port.value_or(0) != endpoint_port) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--master-port ", endpoint_port,
                   " is also the port of the rendezvous; write another, or leave it out"));
}

absl::Status ApplyEndpoint(const RunFlags& flags, const DetectedJob& detected, JobSpec* spec) {
  const rendezvous::Hello& hello = spec->options.hello;
  std::string flag = "--rdzv-endpoint";
  std::string given = flags.rdzv_endpoint.value_or("");
  if (given.empty() && flags.master_addr.has_value()) {
    flag = "--master-addr";
    given = *flags.master_addr;
  }
  if (given.empty() && hello.nodes_max > 1) given = detected.endpoint.value_or("");
  if (given.empty() && hello.nodes_max > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nnodes ", hello.nodes_min, ":", hello.nodes_max,
        " needs a place to meet: give every node the same --rdzv-endpoint HOST[:PORT], "
        "HOST being one of them"));
  }
  if (given.empty()) {
    spec->standalone = true;
    return absl::OkStatus();
  }
  const absl::StatusOr<HostPort> place = ParseHostPort(given, kDefaultRendezvousPort);
  CONVENE_RETURN_IF_ERROR(Annotate(place.status(), flag));
  spec->options.endpoint = FormatHostPort(place->host, place->port);
  return CheckPorts(flags, place->port);
}

void ApplyStandalone(const RunFlags& flags, const std::string& random_id, JobSpec* spec) {
  spec->options.endpoint = "127.0.0.1:0";
  spec->options.may_host = true;
  spec->options.store_host = "127.0.0.1";
  spec->options.hello.job_id = flags.rdzv_id.value_or(random_id);
  spec->options.hello.node_rank = -1;
  spec->options.hello.nodes_expected = 1;
}

// Goes into messages (protocol buffers take UTF-8 only), log lines and the workers' environment.
absl::Status CheckName(const std::string& flag, const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), absl::ascii_isprint);
  if (is_plain && !name.empty() && name.size() <= kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " \"", absl::CHexEscape(name.substr(0, 40)),
                                                 name.size() > 40 ? "..." : "", "\": write 1 to ",
                                                 kNameBytesMax, " printable ASCII characters"));
}

}  // namespace

absl::StatusOr<JobSpec> MakeJobSpec(const RunFlags& flags, const EnvironmentLookup& environment,
                                    const Machine& machine, const std::string& random_id) {
  CONVENE_RETURN_IF_ERROR(CheckSimpleFlags(flags));
  JobSpec spec;
  agent::AgentOptions& options = spec.options;
  rendezvous::Hello& hello = options.hello;
  for (const std::string& flag : flags.from_environment) {
    spec.reasons.push_back(flag + ", by its PET_ variable");
  }
  if (flags.nnodes.has_value()) CONVENE_RETURN_IF_ERROR(ParseNodes(*flags.nnodes, &hello));
  CONVENE_ASSIGN_OR_RETURN(hello.local_world_size,
                           ParseWorkers(flags.nproc_per_node, machine, &spec));
  CONVENE_RETURN_IF_ERROR(ApplyRendezvousConf(flags, &spec));
  if (flags.standalone) {
    CONVENE_RETURN_IF_ERROR(CheckStandalone(flags, hello));
    spec.standalone = true;
  } else {
    CONVENE_ASSIGN_OR_RETURN(const DetectedJob detected, DetectJob(environment));
    CONVENE_RETURN_IF_ERROR(ApplyDetected(flags, detected, &spec));
    CONVENE_RETURN_IF_ERROR(ApplyEndpoint(flags, detected, &spec));
  }
  if (spec.standalone) ApplyStandalone(flags, random_id, &spec);
  // A spare of an elastic job may stand beyond MAX; in a fixed job it is a slip.
  if (flags.node_rank.value_or(0) >= hello.nodes_max && hello.nodes_min == hello.nodes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank ", *flags.node_rank, " with ", hello.nodes_max,
                     " node(s): ranks count from 0; check --node-rank and --nnodes"));
  }
  spec.local_addr = flags.local_addr;
  hello.host = flags.local_addr.value_or(machine.host_name);
  CONVENE_RETURN_IF_ERROR(CheckName("--rdzv-id", hello.job_id));
  CONVENE_RETURN_IF_ERROR(CheckName("--local-addr (else this machine's name)", hello.host));
  hello.max_restarts = flags.max_restarts;
  options.stop_grace = absl::Seconds(flags.shutdown_timeout_seconds.value_or(30));
  options.store_port = flags.master_port.value_or(0);
  options.log_directory = flags.log_dir;
  options.extra_environment[contract::kRoleName] = flags.role;
  return spec;
}

}  // namespace convene::launcher
