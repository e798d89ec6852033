#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/agent.h"
#include "agent/machine/read_facts.h"
#include "launcher/cluster/kubernetes.h"
#include "launcher/command.h"
#include "launcher/commands.h"
#include "launcher/doctor/doctor_command.h"
#include "launcher/job_spec.h"
#include "launcher/local_address.h"
#include "launcher/local_tasks.h"
#include "launcher/machine.h"
#include "launcher/meeting_place.h"
#include "launcher/outcome.h"
#include "launcher/slurm_address.h"
#include "rendezvous/client/places.h"
#include "rendezvous/net/port_mark.h"
#include "rendezvous/net/resolve.h"
#include "rendezvous/net/service_records.h"
#include "rendezvous/quorum/messages.h"
#include "spdlog/spdlog.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/host_port.h"
#include "tools/base/logging.h"
#include "tools/base/lost_output.h"
#include "tools/base/patient_log.h"
#include "tools/base/random.h"
#include "tools/base/resource_limits.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// A host name that stays unknown for so long counts as a slip of the pen.
constexpr absl::Duration kLocateTimeout = absl::Seconds(15);
constexpr absl::Duration kLastWordsPatience = absl::Seconds(1);
constexpr absl::Duration kLocalAddrPatience = absl::Seconds(2);

// One question to Slurm's controller in this time, on average, where a step has many nodes.
constexpr absl::Duration kScontrolSpreadPerNode = absl::Milliseconds(2);
constexpr absl::Duration kScontrolSpreadMost = absl::Seconds(10);

// For the tasks of one node to find each other: Slurm starts them within milliseconds, mpirun
// within a second; a container's image may take longer. The leader does not wait for the last of
// them.
constexpr absl::Duration kGatherPatience = absl::Seconds(10);
constexpr absl::Duration kLeaderPatience = absl::Seconds(60);

// The threads of the agent itself, of gRPC and of the C library's look-ups.
constexpr int kThreads = 16;
// The descriptors of the agent without workers: loop, signals, session, store, gRPC's listener and
// wake-ups.
constexpr int64_t kOwnFiles = 32;
// Output pipes, log files, pidfd, session.
constexpr int64_t kFilesPerWorker = 8;
// Connections a worker may open to the job's store, when this node hosts it.
constexpr int64_t kConnectionsPerWorker = 4;

// Called before anything is started: gRPC aborts or hangs when it runs out of files or threads.
// ResourceExhausted and Unavailable are about this node, other errors about the command.
absl::Status CheckLimits(const rendezvous::Hello& hello) {
  const int64_t least = kOwnFiles + kFilesPerWorker * hello.local_world_size;
  const int64_t nodes = hello.nodes_max;
  const int64_t wanted = least + nodes + kConnectionsPerWorker * nodes * hello.local_world_size;
  CONVENE_RETURN_IF_ERROR(CheckPidfds());
  CONVENE_RETURN_IF_ERROR(EnsureOpenFiles(least, wanted));
  return CheckThreads(kThreads);
}

// Fails now, not when the run has ended. Where this run ends early, the file of an earlier one must
// not tell its end.
absl::Status ClearOutcomeFile(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  struct stat file = {};
  if (stat(path.c_str(), &file) == 0 && !S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--outcome-file ", path, " is a folder or a device: name a file, which may be a new one"));
  }
  if (access(ParentDirectory(path).c_str(), W_OK | X_OK) == 0 &&
      (unlink(path.c_str()) == 0 || errno == ENOENT)) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, absl::StrCat("--outcome-file ", path, ": write to its folder"));
}

// The kernel keeps signals without a handler from pid 1, which a container's command is: a look-up
// of minutes could not be ended by SIGTERM. For the time before BlockSignals.
void EndAtSignalsAsPid1(const std::vector<int>& signals) {
  if (getpid() != 1) return;
  for (const int number : signals) {
    // A leader's handler (local_tasks.h) ends the process, too.
    const auto before =
        std::signal(number, [](int received) { _exit(ExitCodeForSignal(received)); });
    if (before != SIG_DFL) std::signal(number, before);
  }
}

// This port belongs to a convened with a memory, which may be down at the moment.
void LeaveToDaemon(int port, JobSpec* spec) {
  const std::optional<std::string> memory = rendezvous::PortMark::Find(port);
  if (!memory.has_value()) return;
  const char* const flag = absl::StrContains(*memory, "://") ? "--journal " : "--state-dir ";
  spec->options.may_host = false;
  spec->reasons.push_back(
      absl::StrCat("port ", port, " belongs to the convened with ", flag, *memory,
                   ": this node waits for it where it is down. If it is not to come back, remove ",
                   rendezvous::PortMark::PathOf(port), " or give --rdzv-conf is_host=1"));
}

// Replaces a name of Slurm's that this machine cannot resolve.
absl::Status ResolveSlurmHost(JobSpec* spec) {
  CONVENE_ASSIGN_OR_RETURN(const auto place, ParseHostPort(spec->options.endpoint, std::nullopt));
  CONVENE_ASSIGN_OR_RETURN(
      const std::string host,
      ResolvableSlurmHost(
          spec->slurm_host, spec->is_slurm_host,
          std::min(kScontrolSpreadPerNode * spec->options.hello.nodes_max, kScontrolSpreadMost)));
  if (host == spec->slurm_host) return absl::OkStatus();
  spec->options.endpoint = FormatHostPort(host, place.port);
  spec->reasons.push_back(
      absl::StrCat("node ", spec->slurm_host, " is reached as ", host,
                   host == HostName() ? ", this machine's own name" : ", by scontrol show node"));
  return absl::OkStatus();
}

// Where others reach this node by an address that it does not have, something between them
// translates: so it does not know either from which address its own workers come to the store.
void OpenStore(const std::string& address, JobSpec* spec) {
  spec->options.open_store = true;
  spec->reasons.push_back(absl::StrCat(
      "the store takes clients from every address: this node does not have the address of ",
      address));
}

// Not an error: another node's name service may know it.
void CheckLocalAddr(const std::string& address, JobSpec* spec) {
  const auto resolved = rendezvous::ResolveHost(address, kLocalAddrPatience);
  if (resolved.ok() && HasOneOf(*resolved)) return;
  OpenStore(address, spec);
  if (resolved.ok()) return;
  spdlog::warn(
      "--local-addr {}: {}. Workers here and on the other nodes look for the job's store under "
      "this name",
      address, std::string(resolved.status().message()));
}

absl::Status CheckMeetingPlace(JobSpec* spec) {
  const MeetingVerdict verdict = JudgeMeetingPlace(spec->meeting);
  if (verdict.kind == MeetingVerdict::Kind::kRefusal) {
    return absl::InvalidArgumentError(verdict.why);
  }
  if (verdict.kind == MeetingVerdict::Kind::kWarning) spdlog::warn("{}", verdict.why);
  if (verdict.kind == MeetingVerdict::Kind::kNote) spec->reasons.push_back(verdict.why);
  return absl::OkStatus();
}

absl::Status Locate(absl::Duration patience, JobSpec* spec) {
  if (spec->local_addr.has_value()) CheckLocalAddr(*spec->local_addr, spec);
  if (!spec->slurm_host.empty()) CONVENE_RETURN_IF_ERROR(ResolveSlurmHost(spec));
  CONVENE_ASSIGN_OR_RETURN(const auto places,
                           rendezvous::ParsePlaces(spec->options.endpoint, std::nullopt));
  std::vector<std::string> hosts;
  for (const HostPort& place : places) hosts.push_back(place.host);
  absl::StatusOr<Location> location =
      LocateRendezvous(hosts, std::min(patience, spec->options.connect_timeout), spec->comes_late);
  CONVENE_RETURN_IF_ERROR(Annotate(location.status(), spec->meeting.given));
  const std::string& host = location->host;
  location->is_here |= spec->is_slurm_host;
  spec->meeting.host = host;
  spec->meeting.leads_to = location->loopback;
  spec->meeting.own_address = spec->local_addr.value_or(location->own_address);
  CONVENE_RETURN_IF_ERROR(CheckMeetingPlace(spec));
  spec->options.may_host = !spec->has_standbys && spec->is_host.value_or(location->is_here);
  if (spec->options.may_host && !spec->is_host.has_value()) LeaveToDaemon(places[0].port, spec);
  const int rank = spec->options.hello.node_rank;
  if (spec->is_static && (rank == 0 || (rank < 0 && location->is_here))) {
    spec->options.store_host = host;
    if (!location->is_here) OpenStore(host, spec);
    spec->reasons.push_back(absl::StrCat("workers are told MASTER_ADDR=", host));
    return absl::OkStatus();
  }
  spec->options.store_host = spec->local_addr.value_or(location->own_address);
  spec->options.store_host_may_change = !spec->local_addr.has_value() && !location->is_here;
  spec->reasons.push_back(absl::StrCat(
      host, location->is_here ? " is this machine" : " is another machine", ": this node ",
      spec->options.may_host ? "serves the rendezvous if nobody does" : "only dials the rendezvous",
      spec->is_host.has_value() ? " (by its rank, or --rdzv-conf is_host)" : ""));
  const char* const by = spec->local_addr.has_value() ? ", by --local-addr"
                         : location->loopback.empty() ? ", the address on the way to the endpoint"
                                                      : "";
  spec->reasons.push_back(absl::StrCat("others reach this node at ", spec->options.store_host, by));
  return absl::OkStatus();
}

void TellLastWords(const agent::Result& result, const std::string& job_id) {
  std::string words = result.explanation;
  if (result.exit_code == 0) {
    words = absl::StrCat("job ", job_id, " succeeded: all workers of all nodes ended with 0");
  }
  if (!result.lost_output.empty()) {
    absl::StrAppend(&words, result.exit_code == 0 ? ". " : "\n",
                    "Output that could not be written is lost: ", result.lost_output);
  }
  spdlog::log(result.exit_code == 0 ? spdlog::level::info : spdlog::level::err, "{}", words);
  FlushLog();
  const LostOutput log = LostLog();
  if (!log.any() || log.error == EAGAIN) return;
  PatientLog(STDOUT_FILENO, kLastWordsPatience)
      .Add(absl::StrCat("convene: ", words, "\nconvene: ", log.Amount(),
                        " of this command's log could not be written to stderr (", log.Reason(),
                        ")\n"));
}

// Where nothing tells the node's topology: by the driver, which takes a part of a second.
void AddNvlinkTopology(const RunFlags& flags, JobSpec* spec) {
  rendezvous::Hello& hello = spec->options.hello;
  if (flags.topology.has_value() || !hello.topology.empty() || hello.nodes_max < 2) return;
  const agent::FactsOptions sources;
  hello.topology = NvlinkTopology(agent::ReadGpuDriver(sources.root, sources.gpu_library));
  if (hello.topology.empty()) return;
  spec->reasons.push_back(absl::StrCat("topology ", hello.topology, ", by the GPUs' driver"));
}

absl::StatusOr<int> RunAgentOf(const RunFlags& flags, const EnvironmentLookup& environment,
                               JobSpec spec) {
  for (const std::string& warning : spec.warnings) spdlog::warn("{}", warning);
  CONVENE_RETURN_IF_ERROR(ClearOutcomeFile(flags.outcome_file));
  const absl::Status limits = CheckLimits(spec.options.hello);
  if (absl::IsResourceExhausted(limits) || absl::IsUnavailable(limits)) {
    spdlog::error("{}", std::string(limits.message()));
    return static_cast<int>(ExitCode::kUnfitNode);
  }
  CONVENE_RETURN_IF_ERROR(limits);
  CONVENE_ASSIGN_OR_RETURN(spec.options.command,
                           ResolveCommand(flags, environment, OwnDirectory(), CalledDirectory()));
  AddNvlinkTopology(flags, &spec);
  agent::HealthCheck& health_check = spec.options.health_check;
  if (health_check.command == "doctor") health_check.program = DoctorProgram();
  if (flags.doctor) spec.options.command = WithPreflight(std::move(spec.options.command));
  EndAtSignalsAsPid1(spec.options.ending_signals);
  // As under torchrun, the first node's name may appear minutes after the others.
  const bool is_patient = flags.as_torchrun || spec.comes_late;
  const absl::Duration patience = is_patient ? absl::InfiniteDuration() : kLocateTimeout;
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
  TellLastWords(result, spec.options.hello.job_id);
  if (!flags.outcome_file.empty()) {
    const absl::Status written = WriteFileAtomic(flags.outcome_file, OutcomeJson(result));
    if (!written.ok()) spdlog::error("--outcome-file: {}", std::string(written.message()));
  }
  FlushLog();
  return result.exit_code;
}

// A mpirun that is killed tells its processes nothing: they would compute on.
void EndWithMpirun(const std::string& parent) {
  static const absl::flat_hash_set<std::string> kStarters = {
      "mpirun",  "mpirun.openmpi", "mpiexec", "mpiexec.openmpi",
      "orterun", "orted",          "prterun", "prted"};
  if (!kStarters.contains(parent)) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  // It may have died before: then the kernel has nothing to tell any more.
  if (!kStarters.contains(ParentName())) raise(SIGTERM);
}

// This command as one of several that a scheduler started on this node.
absl::StatusOr<int> RunLocalTask(const RunFlags& flags, const EnvironmentLookup& environment,
                                 JobSpec spec) {
  const LocalTask task = *spec.local_task;
  if (task.rank > 0) {
    std::vector<int> signals = spec.options.ending_signals;
    signals.insert(signals.end(), {SIGUSR1, SIGUSR2});  // Slurm's --signal
    auto exit_code = AwaitLocalLeader(task, signals, kLeaderPatience);
    if (!absl::IsNotFound(exit_code.status())) return exit_code;
    spec.reasons.push_back(
        "this task is an agent of its own, as under torchrun: task 0 of this node has another "
        "--rdzv-id, --rdzv-endpoint, --master-addr or --master-port");
    if (spec.has_worker_a_task) spec.options.hello.local_world_size = 1;
    return RunAgentOf(flags, environment, std::move(spec));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto leader,
                           LocalTaskLeader::Lead(task, spec.options.ending_signals));
  const int beside = leader->Gather(kGatherPatience);
  if (spec.has_worker_a_task) spec.options.hello.local_world_size -= beside;
  const absl::StatusOr<int> exit_code = RunAgentOf(flags, environment, std::move(spec));
  leader->Dismiss(exit_code.ok() ? *exit_code
                                 : static_cast<int>(ExitCodeForStatus(exit_code.status())));
  return exit_code;
}

absl::StatusOr<int> RunJob(RunFlags flags) {
  const EnvironmentLookup environment = MeantEnvironment(ProcessEnvironment());
  const Machine machine = InspectMachine(environment);
  EndWithMpirun(machine.parent);
  if (flags.rdzv_endpoint.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(flags.rdzv_endpoint, rendezvous::ResolveService(*flags.rdzv_endpoint));
  }
  CONVENE_ASSIGN_OR_RETURN(JobSpec spec, MakeJobSpec(flags, environment, machine,
                                                     absl::StrFormat("%016x", RandomU64())));
  // `scancel --signal=USR1` reaches the program that runs the workers first, and is not meant to
  // end it.
  const std::vector<int>& ending = spec.options.ending_signals;
  for (const int number : {SIGUSR1, SIGUSR2}) {
    if (std::find(ending.begin(), ending.end(), number) == ending.end()) signal(number, SIG_IGN);
  }
  if (spec.local_task.has_value()) return RunLocalTask(flags, environment, std::move(spec));
  return RunAgentOf(flags, environment, std::move(spec));
}

}  // namespace

absl::StatusOr<int> RunCommand(const RunFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const int exit_code, RunJob(flags));
  // torchrun's: 1 for every failure, a signal too, unless the workers' own code was asked for.
  return flags.as_torchrun && !flags.options.propagate_exit_code ? std::min(exit_code, 1)
                                                                 : exit_code;
}

}  // namespace convene::launcher
