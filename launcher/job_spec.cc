#include "launcher/job_spec.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "launcher/allocation.h"
#include "launcher/cluster/detect.h"
#include "launcher/cluster/kubernetes.h"
#include "launcher/log_options.h"
#include "launcher/rendezvous_conf.h"
#include "launcher/task_agents.h"
#include "launcher/torchrun_rules.h"
#include "launcher/worker_options.h"
#include "rendezvous/client/places.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr size_t kNameBytesMax = 256;  // as the daemon allows
// torchrun's.
constexpr char kDefaultMasterAddr[] = "127.0.0.1";
constexpr int kDefaultMasterPort = 29500;
// A new leader may need some seconds to begin, and workers must not stop meanwhile.
constexpr absl::Duration kLeaseWithStandbys = absl::Seconds(20);

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
        "--nproc-per-node gpu: this node shows no GPU (/dev/nvidia*, CUDA_VISIBLE_DEVICES; "
        "/dev/kfd, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES); write a number or cpu");
  }
  if (text == "gpu") return machine.gpus;
  if (text == "xpu" && machine.xpus == 0) {
    return absl::InvalidArgumentError(
        "--nproc-per-node xpu: this node shows no Intel GPU (/sys/class/drm, ZE_AFFINITY_MASK); "
        "write a number or cpu");
  }
  if (text == "xpu") return machine.xpus;
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
                     rendezvous::kMostWorkersPerNode, ", gpu, xpu, cpu or auto"));
  }
  return workers;
}

absl::Status ApplyRendezvousConf(const RendezvousConf& conf, JobSpec* spec) {
  rendezvous::Hello& hello = spec->options.hello;
  hello.join_timeout = conf.join_timeout.value_or(hello.join_timeout);
  if (conf.last_call.has_value()) {
    // For the daemon zero means that no last call was asked for; a user who gives 0 wants no wait
    // at all.
    hello.last_call = std::max(*conf.last_call, absl::Milliseconds(1));
  }
  if (hello.last_call > hello.join_timeout) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--rdzv-conf: last_call_timeout (", absl::FormatDuration(hello.last_call),
        ") is longer than join_timeout (", absl::FormatDuration(hello.join_timeout),
        "): the job would give up before it starts; lower the first or raise the second"));
  }
  hello.lease = conf.lease.value_or(hello.lease);
  spec->is_host = conf.is_host;
  absl::Duration& connect_timeout = spec->options.connect_timeout;
  connect_timeout = std::min(conf.connect_timeout.value_or(connect_timeout), hello.join_timeout);
  return absl::OkStatus();
}

// --nproc-per-node, whose default and whose words follow this node's part of the allocation.
absl::StatusOr<int> WorkersHere(const RunFlags& flags, const DetectedJob& detected,
                                const Machine& machine, JobSpec* spec) {
  const int tasks = detected.local_task.has_value() ? detected.local_task->count : 1;
  Machine given = machine;
  given.gpus = detected.gpus.value_or(machine.gpus);
  // One of several tasks is bound to its own CPUs, and the agent gets those of all.
  given.cpus = tasks > 1
                   ? detected.cpus.value_or(machine.cpus)
                   : std::min(machine.cpus, std::max(1, detected.cpus.value_or(machine.cpus)));
  std::string text = flags.nproc_per_node.value_or("1");
  if (!flags.nproc_per_node.has_value() && detected.workers.has_value()) {
    text = absl::StrCat(*detected.workers);
    spec->has_worker_a_task = tasks > 1;
    spec->reasons.push_back(detected.workers_reason);
  }
  CONVENE_ASSIGN_OR_RETURN(const int workers, ParseWorkers(text, given, spec));
  if (workers < tasks) {
    spec->warnings.push_back(absl::StrCat(
        tasks, " tasks on this node, but --nproc-per-node ", text, ": task 0 starts ", workers,
        " worker(s) of one job, and the others none. Leave the flag out for a worker a task, or "
        "write --nnodes with the number of all tasks for an agent a task"));
  }
  if (detected.local_task.has_value() && tasks == 1 && workers > machine.cpus) {
    spec->warnings.push_back(absl::StrCat(
        "this process may use ", machine.cpus, " CPU(s), and its ", workers,
        " workers will share them: ask for more (`srun --cpus-per-task=N`; not each version of "
        "srun "
        "takes it over from sbatch) or for no binding (`srun --cpu-bind=none`, `mpirun --bind-to "
        "none`)"));
  }
  return workers;
}

absl::Status CheckStandalone(const RunFlags& flags, JobSpec* spec) {
  rendezvous::Hello& hello = spec->options.hello;
  if (flags.rdzv_endpoint.has_value() || flags.master_addr.has_value()) {
    return absl::InvalidArgumentError(
        "--standalone is one node by itself, --rdzv-endpoint and --master-addr are where several "
        "meet: leave one out (PET_ variables count)");
  }
  if (flags.as_torchrun && hello.nodes_min == 1 && hello.nodes_max > 1) {
    hello.nodes_max = 1;
    spec->reasons.push_back(
        absl::StrCat("with --standalone torchrun meets no other node, so --nnodes ",
                     flags.nnodes.value_or(""), " is one node"));
  }
  if (hello.nodes_max > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--standalone is one node by itself, but --nnodes says ",
                     flags.nnodes.value_or(""), ": leave one out"));
  }
  return absl::OkStatus();
}

// PyTorchJob's operator sets PET_MASTER_PORT also where its PET_RDZV_ENDPOINT has the same port
// (elasticPolicy with a Master): no person wrote either.
RunFlags WithoutTakenPort(RunFlags flags, std::vector<std::string>* reasons) {
  if (!flags.master_port.has_value() || flags.rdzv_backend == "static") return flags;
  const auto places =
      rendezvous::ParsePlaces(flags.rdzv_endpoint.value_or(""), kDefaultRendezvousPort);
  if (!places.ok() || places->size() > 1 || places->front().port != *flags.master_port) {
    return flags;
  }
  const std::string written = absl::StrCat("--master-port=", *flags.master_port, " (");
  for (const std::string& flag : flags.from_environment) {
    if (!absl::StartsWith(flag, written)) continue;
    reasons->push_back(absl::StrCat(flag,
                                    " is also the port of --rdzv-endpoint: the workers' "
                                    "store gets any free port instead"));
    flags.master_port.reset();
  }
  return flags;
}

// The scheduler's id is that of its own nodes alone: nodes of another job or step have another one,
// and wait elsewhere. Two commands of one shell (salloc's has no rank) may still meet.
absl::Status CheckOwnId(const DetectedJob& detected, JobSpec* spec) {
  const rendezvous::Hello& hello = spec->options.hello;
  const std::string remedy = "give --rdzv-id, the same on all nodes of the run";
  if (*detected.nodes < hello.nodes_min && detected.node_rank.has_value() &&
      !detected.is_in_shell) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nnodes asks for ", hello.nodes_min,
                     " node(s) at least, but the scheduler started this command on ",
                     *detected.nodes, ", and the run's id ", hello.job_id,
                     " is of these alone: no others could join. If the others belong to another "
                     "job or step, ",
                     remedy, "; else ask for more nodes, or write --nnodes ", *detected.nodes));
  }
  if (hello.nodes_max + hello.spares > *detected.nodes) {
    spec->warnings.push_back(absl::StrCat(
        "the run's id ", hello.job_id,
        " is the scheduler's: nodes of other jobs have another one, and do not meet this node. If "
        "they are to be one run, ",
        remedy));
  }
  return absl::OkStatus();
}

// Nodes, rank and id by flags, else by the scheduler.
absl::Status ApplyDetected(const RunFlags& flags, const DetectedJob& detected, JobSpec* spec) {
  rendezvous::Hello& hello = spec->options.hello;
  const bool has_place = flags.rdzv_endpoint.has_value() || flags.master_addr.has_value();
  const bool is_one_node = hello.nodes_max == 1 && hello.spares == 0;
  if (!detected.refusal.empty() && !(flags.nnodes.has_value() && (is_one_node || has_place))) {
    return absl::InvalidArgumentError(detected.refusal);
  }
  if (!flags.nnodes.has_value() && detected.nodes.has_value()) {
    CONVENE_RETURN_IF_ERROR(ParseNodes(absl::StrCat(*detected.nodes), &hello));
  }
  const int nodes = detected.nodes.value_or(0);
  // A single node that is told where to meet waits for nodes of other jobs, an array's for example,
  // and so do several that are too few.
  const bool is_part = has_place && nodes > 0 && (nodes == 1 || nodes < hello.nodes_min);
  if (!is_part && nodes >= hello.nodes_min && nodes <= hello.nodes_max) {
    hello.nodes_expected = nodes;
  }
  const bool has_own_ranks = is_part && !is_one_node;
  const int node_rank = has_own_ranks ? -1 : detected.node_rank.value_or(-1);
  hello.node_rank = flags.node_rank.value_or(node_rank);
  hello.job_id = flags.rdzv_id.value_or(detected.job_id.value_or("none"));
  if (is_part && !flags.rdzv_id.has_value() && detected.job_id.has_value()) {
    CONVENE_RETURN_IF_ERROR(CheckOwnId(detected, spec));
  }
  spec->warnings.insert(spec->warnings.end(), detected.warnings.begin(), detected.warnings.end());
  if (has_own_ranks && detected.node_rank.has_value()) {
    spec->reasons.push_back(
        "no node rank by the scheduler: nodes of other jobs may come, and the ranks of each job "
        "begin with 0");
  }
  if (detected.local_task.has_value() && detected.local_task->count > 1) {
    spec->local_task = detected.local_task;
  }
  return absl::OkStatus();
}

absl::Status NoPlaceToMeet(const rendezvous::Hello& hello, const std::string& hint) {
  return absl::InvalidArgumentError(
      absl::StrCat("--nnodes ", hello.nodes_min, ":", hello.nodes_max,
                   " needs a place to meet: give every node the same --rdzv-endpoint HOST[:PORT], "
                   "HOST being one of them",
                   hint.empty() ? "" : ". ", hint));
}

// The place of --master-addr and --master-port: the first node's. The agents meet there, and the
// workers find their store there: the port that serves the rendezvous serves the store as well.
absl::Status ApplyStaticPlace(const RunFlags& flags, JobSpec* spec) {
  const std::string host = flags.master_addr.value_or(kDefaultMasterAddr);
  const int port = flags.master_port.value_or(kDefaultMasterPort);
  // Brackets are for a port behind them only.
  const absl::StatusOr<HostPort> place = ParseHostPort(host, port);
  CONVENE_RETURN_IF_ERROR(Annotate(place.status(), "--master-addr"));
  if (port == 0) {
    return absl::InvalidArgumentError(
        "--master-port 0: several nodes cannot guess it; write the same port on each");
  }
  spec->options.endpoint = FormatHostPort(place->host, port);
  spec->meeting.given =
      flags.master_addr.has_value()
          ? absl::StrCat("--master-addr ", host)
          : absl::StrCat("--master-addr, which is ", host, " where it is not given");
  spec->reasons.push_back(absl::StrCat("the nodes meet at ", spec->options.endpoint,
                                       ", by --master-addr and --master-port or their defaults"));
  return absl::OkStatus();
}

// Several endpoints are daemons that run anyway.
absl::Status CheckStandbys(bool is_static, const JobSpec& spec) {
  if (!is_static && spec.is_host != true) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(spec.meeting.given, " names several daemons that take turns, and ",
                   is_static ? "--rdzv-backend static (torchrun's default; c10d is another)"
                             : "--rdzv-conf is_host=1",
                   " makes a node of the job serve: leave that out, or name one endpoint"));
}

// The endpoint's port follows from Slurm's numbers, so another job's may lead there, too. Runs that
// flags name may be several in one step.
void TakeSlurmHost(const RunFlags& flags, const DetectedJob& detected, JobSpec* spec) {
  spec->slurm_host = detected.slurm_host;
  spec->is_slurm_host = detected.is_slurm_host;
  if (detected.slurm_host.empty()) return;
  spec->options.hosts_own_run_only = !flags.rdzv_id.has_value();
  spec->options.taken_port_advice = absl::StrCat(
      "Port ", detected.endpoint->substr(detected.endpoint->rfind(':') + 1),
      " follows from the numbers of job and step, and another program or run may have it on ",
      detected.slurm_host, ": give every node --rdzv-endpoint ", detected.slurm_host,
      ":PORT with another port, or submit the job again for another number");
}

absl::Status ApplyEndpoint(const RunFlags& flags, const DetectedJob& detected, JobSpec* spec) {
  const rendezvous::Hello& hello = spec->options.hello;
  const bool is_alone = hello.nodes_max == 1 && hello.spares == 0;
  const bool is_static = flags.rdzv_backend == "static";
  std::string given = flags.rdzv_endpoint.value_or("");
  const bool is_master_place =
      given.empty() && (flags.master_addr.has_value() || (is_static && flags.as_torchrun));
  const bool is_scheduled = given.empty() && !is_master_place && detected.endpoint.has_value();
  // Pods that count themselves may well be a job each.
  if (is_scheduled && (!is_alone || !detected.slurm_host.empty())) {
    CONVENE_RETURN_IF_ERROR(CheckAllocation(detected, hello));
  }
  if (is_scheduled && !is_alone) {
    given = *detected.endpoint;
    spec->meeting.given = absl::StrCat("the scheduler's endpoint ", given);
    TakeSlurmHost(flags, detected, spec);
  }
  if (given.empty() && is_alone) {
    spec->standalone = true;
    return absl::OkStatus();
  }
  if (is_static && !is_alone && flags.as_torchrun && spec->options.hello.node_rank < 0) {
    spec->options.hello.node_rank = 0;  // torchrun's default
  }
  if (is_master_place) {
    CONVENE_RETURN_IF_ERROR(ApplyStaticPlace(flags, spec));
  } else if (given.empty()) {
    return NoPlaceToMeet(hello, detected.endpoint_hint);
  } else {
    const auto places = rendezvous::ParsePlaces(given, kDefaultRendezvousPort, is_alone ? 0 : 1);
    CONVENE_RETURN_IF_ERROR(Annotate(places.status(), "--rdzv-endpoint"));
    const int port = places->front().port;
    if (port == 0) {  // "localhost:0": any port, so nobody else can come
      spec->standalone = true;
      return absl::OkStatus();
    }
    spec->options.endpoint = rendezvous::FormatPlaces(*places);
    if (spec->meeting.given.empty()) spec->meeting.given = "--rdzv-endpoint " + given;
    spec->has_standbys = places->size() > 1;
    if (spec->has_standbys) return CheckStandbys(is_static, *spec);
    if (flags.master_port == port) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--master-port ", port, " is also the port of --rdzv-endpoint; ",
          is_static ? "leave it out: with --rdzv-backend static the rendezvous serves the workers' "
                      "store at that port as well"
                    : "the workers' store needs another one: write it, or leave the flag out for "
                      "any free port"));
    }
  }
  if (!is_static && !is_master_place) return absl::OkStatus();
  spec->is_static = true;
  // As under torchrun, the first node serves, whatever its address looks like from inside. A node
  // alone needs no rank: it serves where the endpoint is on its machine, and dials a daemon
  // elsewhere.
  const bool knows_rank = flags.node_rank.has_value() || (flags.as_torchrun && !is_alone);
  if (knows_rank && !spec->is_host.has_value()) {
    spec->is_host = spec->options.hello.node_rank == 0;
  }
  return absl::OkStatus();
}

void ApplyStandalone(const RunFlags& flags, const std::string& random_id, JobSpec* spec) {
  spec->options.endpoint = "127.0.0.1:0";
  spec->options.may_host = true;
  spec->options.store_host = flags.master_addr.value_or(kDefaultMasterAddr);
  spec->options.hello.job_id = flags.rdzv_id.value_or(random_id);
  spec->options.hello.node_rank = -1;
  spec->options.hello.nodes_expected = 1;
}

// This node's topology: by flag, else by the environment, else by Slurm's topology plug-in, whose
// last component is the node itself.
std::string TopologyOf(const RunFlags& flags, const EnvironmentLookup& environment,
                       std::vector<std::string>* reasons) {
  if (flags.topology.has_value()) return *flags.topology;
  std::string label = environment("CONVENE_TOPOLOGY").value_or("");
  std::string variable = "CONVENE_TOPOLOGY";
  if (label.empty()) {
    const std::string address = environment("SLURM_TOPOLOGY_ADDR").value_or("");
    const std::string node = "." + environment("SLURMD_NODENAME").value_or("");  // may have dots
    const size_t end =
        absl::EndsWith(address, node) ? address.size() - node.size() : address.rfind('.');
    // Without a topology plug-in the address is the node's name and nothing else.
    const bool is_node_alone = "." + address == node || end == std::string::npos;
    label = is_node_alone ? "" : address.substr(0, end);
    variable = "SLURM_TOPOLOGY_ADDR";
  }
  if (!label.empty()) reasons->push_back(absl::StrCat("topology ", label, ", by ", variable));
  return label;
}

// Checks a name that goes into messages (protocol buffers take UTF-8 only), log lines and the
// workers' environment.
absl::Status CheckName(const std::string& flag, const std::string& name) {
  const bool is_plain = std::all_of(name.begin(), name.end(), absl::ascii_isprint);
  if (is_plain && !name.empty() && name.size() <= kNameBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " \"", absl::CHexEscape(name.substr(0, 40)),
                                                 name.size() > 40 ? "..." : "", "\": write 1 to ",
                                                 kNameBytesMax, " printable ASCII characters"));
}

absl::Status CheckNames(const rendezvous::Hello& hello) {
  CONVENE_RETURN_IF_ERROR(CheckName("--rdzv-id", hello.job_id));
  CONVENE_RETURN_IF_ERROR(CheckName("--local-addr (else this machine's name)", hello.host));
  if (!hello.role.empty()) CONVENE_RETURN_IF_ERROR(CheckName("--role", hello.role));
  if (hello.topology.empty()) return absl::OkStatus();
  return CheckName("--topology", hello.topology);
}

// A spare's rank may be beyond MAX. In an elastic job that needs no warning; in a fixed job it is a
// slip.
absl::Status CheckNodeRank(const RunFlags& flags, const rendezvous::Hello& hello) {
  const int rank = flags.node_rank.value_or(0);
  if (hello.nodes_min < hello.nodes_max || rank < hello.nodes_max + hello.spares) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--node-rank ", rank, " with ", hello.nodes_max,
                   " node(s): ranks count from 0; check --node-rank and --nnodes"));
}

void MakeOneAgentATask(DetectedJob* detected, JobSpec* spec) {
  LocalTask& task = *detected->local_task;
  spec->meeting.agents_here = task.count;
  detected->nodes = task.count_of_all;
  detected->node_rank = task.rank_of_all;
  spec->reasons.push_back(absl::StrCat(
      "--nnodes ", task.count_of_all,
      " is the number of this step's tasks, not of its nodes: each task is an agent of its own, "
      "and this one's node rank is the task's, ",
      task.rank_of_all));
  task.rank = 0;
  task.count = 1;
}

// torchrun asks no scheduler: its line in a batch script is one node, however many nodes there are.
// So is a line with --standalone.
absl::StatusOr<DetectedJob> DetectFor(const RunFlags& flags, const EnvironmentLookup& environment,
                                      const Machine& machine, JobSpec* spec) {
  absl::StatusOr<DetectedJob> detected =
      DetectJob(environment, {.host_name = machine.host_name,
                              .full_name = machine.full_name,
                              .parent = machine.parent,
                              .has_own_group = machine.has_own_group,
                              .hydra_proxy = machine.hydra_proxy});
  if (detected.ok()) spec->meeting.scheduled_nodes = detected->nodes.value_or(1);
  if (flags.as_torchrun) {
    DetectedJob tasks;
    if (detected.ok() && detected->local_task.has_value()) {
      spec->meeting.agents_here = detected->local_task->count;
    }
    if (!detected.ok() || !detected->hidden_gpus.empty() ||
        !MeansOneAgentANode(flags, spec->options.hello, *detected)) {
      return tasks;
    }
    tasks.local_task = detected->local_task;
    spec->meeting.agents_here = 1;
    tasks.gpus = detected->gpus;
    tasks.warnings = detected->warnings;
    return tasks;
  }
  if (detected.ok() && !detected->signal_warning.empty()) {
    spec->warnings.push_back(detected->signal_warning);
  }
  if (flags.standalone) return DetectedJob();
  if (!detected.ok()) return detected;
  if (MeansOneAgentATask(flags, spec->options.hello, *detected)) {
    MakeOneAgentATask(&*detected, spec);
  } else if (!detected->hidden_gpus.empty()) {
    return absl::InvalidArgumentError(detected->hidden_gpus);
  }
  return detected;
}

// The facts about the endpoint that flags and the scheduler tell.
void FillMeetingPlace(const RunFlags& flags, const Machine& machine, JobSpec* spec) {
  MeetingPlace& meeting = spec->meeting;
  meeting.nodes = spec->options.hello.nodes_max + spec->options.hello.spares;
  meeting.local_addr = flags.local_addr.value_or("");
  meeting.own_names = {machine.host_name, machine.host_name.substr(0, machine.host_name.find('.'))};
  if (!machine.full_name.empty()) meeting.own_names.push_back(machine.full_name);
  if (spec->is_slurm_host) meeting.own_names.push_back(spec->slurm_host);
}

absl::Status ApplyPlace(RunFlags flags, const EnvironmentLookup& environment,
                        const DetectedJob& detected, const std::string& random_id, JobSpec* spec) {
  const ConfReader reader = ReaderOf(flags, spec->options.hello);
  CONVENE_ASSIGN_OR_RETURN(const RendezvousConf conf,
                           ParseRendezvousConf(flags.rdzv_conf, reader, &spec->reasons));
  if (reader == ConfReader::kC10d) DropRankOfOneNode(spec->options.hello, &flags, &spec->reasons);
  CONVENE_RETURN_IF_ERROR(ApplyRendezvousConf(conf, spec));
  spec->meeting.only_dials = conf.is_host == false;
  if (!flags.node_rank.has_value()) flags.node_rank = conf.rank;
  if (flags.standalone) {
    CONVENE_RETURN_IF_ERROR(CheckStandalone(flags, spec));
    spec->standalone = true;
  } else {
    CONVENE_RETURN_IF_ERROR(ApplyDetected(flags, detected, spec));
    CONVENE_RETURN_IF_ERROR(ApplyEndpoint(flags, detected, spec));
  }
  if (spec->has_standbys && !conf.lease.has_value()) {
    spec->options.hello.lease = kLeaseWithStandbys;
  }
  CONVENE_RETURN_IF_ERROR(CheckNodeRank(flags, spec->options.hello));
  // Nodes of a static job come in any order, minutes apart; only the first one serves. Pods come as
  // their images are pulled, and a successor waits until its predecessor has ended.
  spec->comes_late = InPod(environment);
  spec->options.awaits_node_rank = spec->comes_late;
  // Under Slurm the first node may start minutes later, too (it fetches an image, say), and its
  // name is no slip of the pen.
  const bool is_slurms = !spec->slurm_host.empty();
  if ((spec->is_static || spec->comes_late || is_slurms) && !conf.connect_timeout.has_value()) {
    spec->options.connect_timeout = spec->options.hello.join_timeout;
  }
  // Several commands that are one node each must not share the id of the step that they are in.
  const bool is_whole = !flags.standalone && detected.nodes == 1 && detected.job_id.has_value();
  if (spec->standalone) ApplyStandalone(flags, is_whole ? *detected.job_id : random_id, spec);
  for (const Reason& reason : detected.reasons) {
    if (Holds(reason.fact, flags, detected, *spec)) spec->reasons.push_back(reason.text);
  }
  const std::string backend = flags.rdzv_backend.value_or("");
  if (backend == "etcd" || backend == "etcd-v2") {
    spec->reasons.push_back(
        absl::StrCat("--rdzv-backend ", backend,
                     ": Convene's own rendezvous is used, no etcd; the host of --rdzv-endpoint is "
                     "a node of the job, or one where `convene serve` runs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobSpec> MakeJobSpec(const RunFlags& given_flags,
                                    const EnvironmentLookup& environment, const Machine& machine,
                                    const std::string& random_id) {
  JobSpec spec;
  for (const std::string& flag : given_flags.from_environment) {
    spec.reasons.push_back(flag + ", by the environment");
  }
  if (given_flags.module && given_flags.no_python && !given_flags.run_path) {
    return absl::InvalidArgumentError(
        "--module runs under Python and --no-python does not: leave one out");
  }
  const RunFlags flags = given_flags.as_torchrun ? AsTorchrunReads(given_flags, &spec.reasons)
                                                 : WithoutTakenPort(given_flags, &spec.reasons);
  agent::AgentOptions& options = spec.options;
  options = flags.options;
  rendezvous::Hello& hello = options.hello;
  if (flags.nnodes.has_value()) CONVENE_RETURN_IF_ERROR(ParseNodes(*flags.nnodes, &hello));
  CONVENE_ASSIGN_OR_RETURN(const DetectedJob detected,
                           DetectFor(flags, environment, machine, &spec));
  CONVENE_ASSIGN_OR_RETURN(hello.local_world_size, WorkersHere(flags, detected, machine, &spec));
  CONVENE_RETURN_IF_ERROR(ApplyPlace(flags, environment, detected, random_id, &spec));
  FillMeetingPlace(flags, machine, &spec);
  if (spec.local_task.has_value()) {
    spec.local_task->job = JobOfTask(flags);
    spec.local_task->command = flags.command;
  }
  spec.local_addr = flags.local_addr;
  hello.host = flags.local_addr.value_or(machine.host_name);
  hello.topology = TopologyOf(flags, environment, &spec.reasons);
  CONVENE_RETURN_IF_ERROR(CheckNames(hello));
  if (!flags.master_addr.value_or("").empty()) {
    CONVENE_RETURN_IF_ERROR(CheckName("--master-addr", *flags.master_addr));
  }
  hello.admission = flags.admission_delay;
  // Without a master's place the port is the store's alone.
  if (spec.standalone || !spec.is_static || flags.rdzv_endpoint.has_value()) {
    options.store_port = flags.master_port.value_or(0);
  }
  options.store_at_rendezvous = spec.is_static && options.store_port == 0;
  CONVENE_ASSIGN_OR_RETURN(options.log, MakeLogOptions(flags));
  CONVENE_RETURN_IF_ERROR(ApplyWorkerFlags(flags, &options, &spec.reasons));
  return spec;
}

}  // namespace convene::launcher
