#include "launcher/cluster/kubernetes.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/flags.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

std::string Endpoint(absl::string_view host) {
  return absl::StrCat(host, ":", kDefaultRendezvousPort);
}

bool IsServiceAddress(absl::string_view value) {
  return absl::StartsWith(value, "tcp://") || absl::StartsWith(value, "udp://") ||
         absl::StartsWith(value, "sctp://");
}

// "train-3" is pod 3 of "train".
std::optional<int> OrdinalIn(absl::string_view host, absl::string_view name) {
  int ordinal = 0;
  if (!absl::ConsumePrefix(&host, name) || !absl::ConsumePrefix(&host, "-") ||
      !std::all_of(host.begin(), host.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(host, &ordinal)) {
    return std::nullopt;
  }
  return ordinal;
}

// ---- Volcano ----

// The hosts of the task in their order; empty where there is no such task.
std::vector<std::string> HostsOfTask(const EnvironmentLookup& environment, std::string task) {
  task = absl::AsciiStrToUpper(task);
  std::replace(task.begin(), task.end(), '-', '_');
  return absl::StrSplit(environment(absl::StrCat("VC_", task, "_HOSTS")).value_or(""), ',',
                        absl::SkipEmpty());
}

// The place of `host` in a list whose entries may have a domain.
std::optional<int> PlaceIn(const std::vector<std::string>& hosts, const std::string& host) {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const std::string& entry) {
    return entry == host || absl::StartsWith(entry, host + ".");
  });
  if (found == hosts.end()) return std::nullopt;
  return static_cast<int>(found - hosts.begin());
}

// Volcano calls a pod JOB-TASK-INDEX, and any part of that may have dashes: the task is the part
// whose list of hosts has this one. The tasks `master` and `worker` are one job.
void DetectVolcano(const EnvironmentLookup& environment, const ProcessFacts& process,
                   DetectedJob* job) {
  if (!environment("VC_TASK_INDEX").has_value()) return;
  std::vector<std::vector<std::string>> lists;
  lists.push_back(HostsOfTask(environment, "master"));
  for (std::string& worker : HostsOfTask(environment, "worker")) {
    lists.back().push_back(std::move(worker));
  }
  std::string rest = process.host_name.substr(0, process.host_name.rfind('-'));
  for (size_t dash = rest.find('-'); dash != std::string::npos; dash = rest.find('-')) {
    rest = rest.substr(dash + 1);
    lists.push_back(HostsOfTask(environment, rest));
  }
  for (const std::vector<std::string>& hosts : lists) {
    const std::optional<int> place = PlaceIn(hosts, process.host_name);
    if (!place.has_value()) continue;
    const std::string by = ", by Volcano's VC_<TASK>_HOSTS";
    const int nodes = static_cast<int>(hosts.size());
    Choose(&job->nodes, nodes, absl::StrCat(nodes, " nodes", by), job);
    Choose(&job->node_rank, *place,
           absl::StrCat("node rank ", *place, ", the place of ", process.host_name, " in them", by),
           job);
    const std::string endpoint = Endpoint(hosts.front());
    Choose(&job->endpoint, endpoint, absl::StrCat("endpoint ", endpoint, by), job);
    return;
  }
}

// ---- PyTorchJob ----

absl::Status DetectPyTorchJob(const EnvironmentLookup& environment, DetectedJob* job) {
  const auto master = environment("MASTER_ADDR");
  const bool is_worker = environment("LOCAL_RANK").has_value();
  if (!master.has_value() || master->empty() || is_worker) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const auto port, CountOf(environment, "MASTER_PORT"));
  CONVENE_ASSIGN_OR_RETURN(const auto nodes, CountOf(environment, "WORLD_SIZE"));
  CONVENE_ASSIGN_OR_RETURN(const auto rank, CountOf(environment, "RANK"));
  if (!port.has_value() || !nodes.has_value() || !rank.has_value()) return absl::OkStatus();
  if (*rank >= *nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RANK=", *rank, " and WORLD_SIZE=", *nodes,
        " contradict each other: ranks count from 0. In a pod RANK counts pods, as PyTorchJob sets "
        "it; unset both if something else set them"));
  }
  // Later operators tell the pods by torchrun's flag, and multiply WORLD_SIZE by nprocPerNode.
  if (!environment("PET_NNODES").has_value()) {
    Choose(&job->nodes, *nodes, absl::StrCat(*nodes, " nodes, by WORLD_SIZE: it counts pods here"),
           job);
  }
  Choose(&job->node_rank, *rank,
         absl::StrCat("node rank ", *rank, ", by RANK: it counts pods here"), job);
  const std::string endpoint = absl::StrCat(*master, ":", *port);
  Choose(&job->endpoint, endpoint,
         absl::StrCat("endpoint ", endpoint, ", by MASTER_ADDR and MASTER_PORT"), job);
  return absl::OkStatus();
}

// ---- JobSet ----

absl::Status DetectJobSet(const EnvironmentLookup& environment, DetectedJob* job) {
  const auto coordinator = environment("JOBSET_COORDINATOR");
  if (!coordinator.has_value() || coordinator->empty()) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const auto jobs, CountOf(environment, "JOBSET_GLOBAL_REPLICAS"));
  CONVENE_ASSIGN_OR_RETURN(const auto job_index, CountOf(environment, "JOBSET_JOB_GLOBAL_INDEX"));
  CONVENE_ASSIGN_OR_RETURN(const auto given_pods, CountOf(environment, "JOBSET_PODS_PER_JOB"));
  CONVENE_ASSIGN_OR_RETURN(const auto pod, CountOf(environment, "JOB_COMPLETION_INDEX"));
  CONVENE_ASSIGN_OR_RETURN(const auto attempt, CountOf(environment, "JOBSET_RESTART_ATTEMPT"));
  const int pods = given_pods.value_or(1);
  const int64_t nodes = int64_t{jobs.value_or(1)} * pods;
  const int64_t rank = int64_t{job_index.value_or(0)} * pods + pod.value_or(0);
  if (pod.value_or(0) >= pods || rank >= nodes || nodes > rendezvous::kMostNodesPerJob) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the JobSet's variables contradict each other: JOBSET_GLOBAL_REPLICAS=", jobs.value_or(1),
        ", JOBSET_PODS_PER_JOB=", pods, ", JOBSET_JOB_GLOBAL_INDEX=", job_index.value_or(0),
        ", JOB_COMPLETION_INDEX=", pod.value_or(0),
        ". Set JOBSET_PODS_PER_JOB to the parallelism of each Job"));
  }
  const std::string by = ", by the JobSet's annotations";
  Choose(&job->nodes, static_cast<int>(nodes), absl::StrCat(nodes, " nodes", by), job);
  Choose(&job->node_rank, static_cast<int>(rank), absl::StrCat("node rank ", rank, by), job);
  Choose(&job->endpoint, Endpoint(*coordinator),
         absl::StrCat("endpoint ", Endpoint(*coordinator), by), job);
  if (const auto name = environment("JOBSET_NAME"); name.has_value() && !name->empty()) {
    const std::string id = absl::StrCat(*name, ".", attempt.value_or(0));
    Choose(&job->job_id, id, absl::StrCat("job id ", id, ", by the JobSet's name and restart"),
           job);
  }
  return absl::OkStatus();
}

// ---- pods that are called NAME-INDEX ----

void ChooseFirstPod(absl::string_view name, const ProcessFacts& process, DetectedJob* job) {
  Choose(&job->job_id, std::string(name),
         absl::StrCat("job id ", name, ", by this pod's name ", process.host_name), job);
  absl::string_view domain = process.full_name;
  if (!absl::ConsumePrefix(&domain, process.host_name + ".")) {
    job->endpoint_hint = absl::StrCat(
        "This pod has no name with a domain in /etc/hosts, so the name of pod 0 is "
        "not known either: set `subdomain` in the pod's template to a headless "
        "Service, as in tools/deploy/kubernetes/indexed-job.yaml, or give the "
        "endpoint");
    return;
  }
  const std::string endpoint = Endpoint(absl::StrCat(name, "-0.", domain));
  Choose(&job->endpoint, endpoint,
         absl::StrCat("endpoint ", endpoint, ", by this pod's name ", process.full_name), job);
}

absl::Status DetectStatefulSet(const EnvironmentLookup& environment, const ProcessFacts& process,
                               DetectedJob* job) {
  const std::string name = environment("CONVENE_STATEFULSET").value_or("");
  if (name.empty()) return absl::OkStatus();
  const std::optional<int> ordinal = OrdinalIn(process.host_name, name);
  if (!ordinal.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("CONVENE_STATEFULSET=", name, ", but this host is called ", process.host_name,
                     " and not ", name,
                     "-ORDINAL: write the name of the StatefulSet that made this pod, or unset the "
                     "variable"));
  }
  Choose(&job->node_rank, *ordinal,
         absl::StrCat("node rank ", *ordinal, ", by CONVENE_STATEFULSET and the host name ",
                      process.host_name),
         job);
  ChooseFirstPod(name, process, job);
  return absl::OkStatus();
}

absl::Status DetectIndexedJob(const EnvironmentLookup& environment, const ProcessFacts& process,
                              DetectedJob* job) {
  CONVENE_ASSIGN_OR_RETURN(const auto index, CountOf(environment, "JOB_COMPLETION_INDEX"));
  if (!index.has_value()) return absl::OkStatus();
  Choose(&job->node_rank, *index,
         absl::StrCat("node rank ", *index,
                      ", by JOB_COMPLETION_INDEX; --nnodes or PET_NNODES tells how many pods "
                      "there are"),
         job);
  absl::string_view name = process.host_name;
  if (absl::ConsumeSuffix(&name, absl::StrCat("-", *index))) ChooseFirstPod(name, process, job);
  return absl::OkStatus();
}

}  // namespace

bool InPod(const EnvironmentLookup& environment) {
  return environment("KUBERNETES_SERVICE_HOST").has_value();
}

EnvironmentLookup MeantEnvironment(EnvironmentLookup environment) {
  return [environment = std::move(environment)](const std::string& name) {
    std::optional<std::string> value = environment(name);
    if (value.has_value() && absl::EndsWith(name, "_PORT") && IsServiceAddress(*value)) {
      value.reset();
    }
    if (!InPod(environment)) return value;
    if (name == "PET_STANDALONE" && value == "") return std::optional<std::string>("1");
    if (name == "PET_NPROC_PER_NODE" && !value.has_value()) {
      return environment("PET_N_PROC_PER_NODE");
    }
    return value;
  };
}

std::string FullNameIn(absl::string_view hosts_file, absl::string_view host_name) {
  for (absl::string_view line : absl::StrSplit(hosts_file, '\n')) {
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    for (size_t i = 1; i < words.size(); ++i) {
      if (absl::StartsWith(words[i], absl::StrCat(host_name, "."))) return std::string(words[i]);
    }
  }
  return "";
}

absl::Status DetectKubernetes(const EnvironmentLookup& environment, ProcessFacts process,
                              DetectedJob* job) {
  // With setHostnameAsFQDN a pod's host name has its domain.
  const size_t dot = process.host_name.find('.');
  if (dot != std::string::npos) {
    process.full_name = process.host_name;
    process.host_name.resize(dot);
  }
  // Outside of a pod, these variables are a person's own.
  if (InPod(environment)) CONVENE_RETURN_IF_ERROR(DetectPyTorchJob(environment, job));
  DetectVolcano(environment, process, job);
  CONVENE_RETURN_IF_ERROR(DetectJobSet(environment, job));
  CONVENE_RETURN_IF_ERROR(DetectStatefulSet(environment, process, job));
  return DetectIndexedJob(environment, process, job);
}

}  // namespace convene::launcher
