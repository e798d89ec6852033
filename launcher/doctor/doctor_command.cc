#include "launcher/doctor/doctor_command.h"

#include <limits.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/machine/read_facts.h"
#include "launcher/command.h"
#include "launcher/doctor/health_service.h"
#include "launcher/doctor/nodes.h"
#include "launcher/doctor/report.h"
#include "launcher/print.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/session/session.h"
#include "worker_runtime/session/stop_token.h"

namespace convene::launcher {
namespace {

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    variables.insert(std::pair<std::string, std::string>(
        absl::StrSplit(absl::string_view(*each), absl::MaxSplits('=', 1))));
  }
  return variables;
}

int CodeOf(bool is_fit) { return static_cast<int>(is_fit ? ExitCode::kOk : ExitCode::kUnfitNode); }

std::string OwnProgram() {
  char path[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return length > 0 ? std::string(path, length) : "convene";
}

absl::Status Show(const std::string& about, const std::vector<agent::Finding>& findings,
                  bool is_json) {
  return Print(is_json ? ReportJson(about, findings) : ReportText(about, findings));
}

// A look at this machine. Its errors, as ExamineNodes has them.
absl::StatusOr<std::string> DoctorHere(const DoctorFlags& flags) {
  const agent::MachineFacts facts =
      agent::ReadFacts({.folders = flags.folders, .environment = Environment()});
  std::vector<agent::Finding> findings = agent::Diagnose(facts);
  if (!flags.service.empty()) findings.push_back(AskHealthService(flags.service));
  CONVENE_RETURN_IF_ERROR(Show(facts.host, findings, flags.is_json));
  return ErrorLines(findings);
}

// As a rank of a job: a look at all of its nodes. ExamineNodes' result. A job of one worker has no
// store, and no other node.
absl::StatusOr<std::string> DoctorNodes(const DoctorFlags& flags,
                                        const worker::Contract& contract) {
  if (contract.world_size == 1) return DoctorHere(flags);
  const auto show = [&](int nodes, const std::vector<agent::Finding>& findings) {
    return Show(nodes == 1 ? "1 node" : absl::StrCat(nodes, " nodes"), findings, flags.is_json);
  };
  return ExamineNodes({.folders = flags.folders,
                       .service = flags.service,
                       .environment = Environment(),
                       .show = show},
                      contract);
}

absl::StatusOr<int> StartNodes(const DoctorFlags& flags, const RunJobOf& run) {
  RunFlags job;
  job.nnodes = flags.nnodes;
  job.rdzv_endpoint = flags.rdzv_endpoint;
  job.rdzv_id = flags.rdzv_id;
  job.local_addr = flags.local_addr;
  job.node_rank = flags.node_rank;
  job.nproc_per_node = "1";
  // A person waits for the answer, and a node that is down is one: a training job waits longer.
  job.rdzv_conf =
      absl::StrCat("join_timeout=", absl::ToDoubleSeconds(flags.wait.value_or(absl::Minutes(1))));
  job.options.propagate_exit_code = true;
  job.options.log.prefix_template = "";
  job.command = DoctorProgram();
  job.options.credentials = flags.credentials;
  if (flags.is_json) job.command.emplace_back("--json");
  if (!flags.service.empty()) job.command.push_back(absl::StrCat("--service=", flags.service));
  for (const std::string& folder : flags.folders) {
    job.command.push_back(folder.starts_with("-") ? absl::StrCat("./", folder) : folder);
  }
  return run(job);
}

absl::StatusOr<int> Doctor(const DoctorFlags& flags, const RunJobOf& run) {
  if (flags.nnodes.has_value()) return StartNodes(flags, run);
  if (!HasRank(ProcessEnvironment())) {
    CONVENE_ASSIGN_OR_RETURN(const std::string errors, DoctorHere(flags));
    return CodeOf(errors.empty());
  }
  CONVENE_ASSIGN_OR_RETURN(const worker::Contract contract,
                           worker::ReadContract(ProcessEnvironment()));
  CONVENE_ASSIGN_OR_RETURN(const std::string errors, DoctorNodes(flags, contract));
  return CodeOf(errors.empty());
}

absl::StatusOr<int> Become(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  std::fprintf(stderr, "convene preflight: %s: %s\n", arguments[0], std::strerror(error));
  return error == ENOENT ? 127 : 126;  // as a shell has them
}

absl::StatusOr<int> Preflight(const std::vector<std::string>& command) {
  CONVENE_ASSIGN_OR_RETURN(const worker::Contract contract,
                           worker::ReadContract(ProcessEnvironment()));
  // The nodes were looked at before the first epoch; a restart must not wait for another look.
  if (contract.is_restart()) return Become(command);
  sigset_t before;
  sigprocmask(SIG_SETMASK, nullptr, &before);
  worker::StopToken stop;
  {
    // In session, so that the agent believes the exit code: a restart would not mend the node.
    worker::BlockStopSignals();
    CONVENE_ASSIGN_OR_RETURN(const auto session, worker::Session::Start(contract, stop));
    CONVENE_ASSIGN_OR_RETURN(const std::string errors, DoctorNodes({}, contract));
    // On each rank: the job's last words are those of the first rank that ends.
    std::fputs(errors.c_str(), stderr);
    if (!errors.empty()) return CodeOf(false);
    session->Leave();  // The agent judges the program as any other.
  }
  std::signal(SIGUSR1, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return Become(command);
}

}  // namespace

void AddFlags(FlagReader* reader, DoctorFlags* flags) {
  reader->Words("FOLDER ...", &flags->folders);
  reader->Switch("json", &flags->is_json, "print JSON, for programs");
  reader->Option("service", &flags->service,
                 "ask the node's health service as well (nvidia-resiliency-ext's), as "
                 "unix:/run/nvhcd.sock",
                 {.value = "SOCKET"});
  reader->Group("All nodes of a job: the same words on each, as for `convene run`");
  reader->Option("nnodes", &flags->nnodes, "the number of nodes", {.value = "N"});
  reader->Option("wait", &flags->wait,
                 "so long this node waits for the others (60); then it says how many came",
                 {.value = "SECONDS", .least = 1});
  reader->Option("rdzv-endpoint", &flags->rdzv_endpoint, "where the nodes meet",
                 {.value = "HOST[:PORT]"});
  reader->Option("rdzv-id", &flags->rdzv_id, "the name of the run", {.value = "ID"});
  reader->Option("node-rank", &flags->node_rank, "of this node", {.value = "N", .least = 0});
  reader->Option("local-addr", &flags->local_addr, "by which the others reach this node",
                 {.value = "ADDRESS"});
  AddCredentialFlags(reader, &flags->credentials);
  reader->Check([flags] {
    const bool names_a_job = flags->wait || flags->rdzv_endpoint || flags->rdzv_id ||
                             flags->node_rank || flags->local_addr;
    if (!names_a_job || flags->nnodes.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "the flags name a job of several nodes: give --nnodes as well; without these flags the "
        "command looks at this machine");
  });
}

Command DoctorRow(const RunJobOf& run) {
  const auto add_flags = [run](FlagReader* reader) -> Action {
    const auto flags = std::make_shared<DoctorFlags>();
    AddFlags(reader, flags.get());
    return [run, flags] { return Doctor(*flags, run); };
  };
  return {
      "doctor",
      "look at this machine, or at all nodes: what stands in the way of training?",
      "Look at this machine before training: GPUs, driver, network, RDMA, names, memory, disk, "
      "limits, clock, and the variables of NCCL, Gloo and PyTorch. Each finding says why it "
      "matters and what to do. FOLDERs (of data or checkpoints) are tried as well. With "
      "--nnodes, or as the program of `convene run`, the nodes also look at each other: versions, "
      "ways, clocks, shared folders, and the speed of links. Exit code 71 where training cannot "
      "run here, so that it can be a --health-check.",
      {},
      add_flags};
}

Command PreflightRow() {
  const auto add_flags = [](FlagReader* reader) -> Action {
    const auto command = std::make_shared<std::vector<std::string>>();
    reader->Rest("PROGRAM [ARGUMENT...]", command.get());
    reader->Check([command] {
      return command->empty() ? absl::InvalidArgumentError("the program is missing")
                              : absl::OkStatus();
    });
    return [command] { return Preflight(*command); };
  };
  return {"preflight",
          "what `convene run --doctor` starts before the program",
          "`convene run --doctor` starts this command in each rank's place. It looks at all nodes, "
          "as `convene doctor` does, and becomes the program where no finding is an error.",
          {},
          add_flags};
}

std::vector<std::string> DoctorProgram() { return {OwnProgram(), "doctor"}; }

std::vector<std::string> WithPreflight(std::vector<std::string> command) {
  const std::vector<std::string> before = {OwnProgram(), "preflight", "--"};
  command.insert(command.begin(), before.begin(), before.end());
  return command;
}

}  // namespace convene::launcher
