#include "launcher/doctor/nodes.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/custody/program.h"
#include "agent/machine/read_facts.h"
#include "launcher/command.h"
#include "launcher/doctor/compare.h"
#include "launcher/doctor/health_service.h"
#include "launcher/doctor/peer_probe.h"
#include "launcher/doctor/report.h"
#include "rendezvous/net/resolve.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/random.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/bench/result.h"
#include "worker_runtime/contract/names.h"
#include "worker_runtime/data/prepare/command_stream.h"

namespace convene::launcher {
namespace {

using agent::Finding;
using agent::Severity;

constexpr absl::Duration kProbeTimeout = absl::Seconds(2);
constexpr absl::Duration kFilesAppear = absl::Seconds(5);
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr size_t kTrialBytes = size_t{32} << 20;
constexpr size_t kBenchBytesMax = size_t{64} << 20;

int NodesOf(const std::map<std::string, std::string>& environment,
            const worker::Contract& contract) {
  const auto given = environment.find(contract::kGroupWorldSize);
  int nodes = 0;
  if (given != environment.end() && absl::SimpleAtoi(given->second, &nodes) && nodes > 0) {
    return nodes;
  }
  return std::max(contract.world_size / std::max(contract.local_world_size, 1), 1);
}

// Bytes a second of a file of 32 MiB, which begins with `mark`, with its fsync; 0 where it cannot
// be written.
double WriteSpeed(const std::string& path, const std::string& mark) {
  const MonotonicTime begin = Clock::Real().Now();
  // Its name can be guessed: never through a link of somebody else's.
  unlink(path.c_str());
  const auto fd = OpenFile(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC);
  if (!fd.ok()) return 0;
  std::string content = mark;
  content.resize(kTrialBytes, 'c');
  const bool written = WriteAll(fd->get(), content, path).ok() && SyncFile(fd->get(), path).ok();
  return written ? kTrialBytes / absl::ToDoubleSeconds(Clock::Real().Now() - begin) : 0;
}

bool BeginsWith(const std::string& path, const std::string& mark) {
  const auto fd = OpenFile(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  std::string begin(mark.size(), '\0');
  return fd.ok() &&
         read(fd->get(), begin.data(), begin.size()) == static_cast<ssize_t>(begin.size()) &&
         begin == mark;
}

// "build 3f2a...": a digest of the program's file, which two builds of one version do not share; ""
// where there is none.
std::string BuildOf(const std::string& path) {
  const absl::StatusOr<std::string> program = ReadFile(path);
  if (!program.ok()) return "";
  return absl::StrCat("build ",
                      absl::Hex(XXH3_64bits(program->data(), program->size()), absl::kZeroPad16));
}

// The trainer's program.
absl::StatusOr<std::string> FindTrainer() {
  RunFlags run;
  run.command = {"convene-train"};
  const EnvironmentLookup environment = ProcessEnvironment();
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> program,
                           ResolveCommand(run, environment, OwnDirectory(), CalledDirectory()));
  return agent::FindProgram(program.front(), environment("PATH").value_or(""));
}

class NodeDoctor {
 public:
  NodeDoctor(const NodesOptions& options, const worker::Contract& contract, int nodes,
             std::unique_ptr<rendezvous::StoreClient> store)
      : options_(options),
        contract_(contract),
        nodes_(nodes),
        node_(contract.group_rank),
        prefix_(absl::StrCat("doctor/", contract.epoch.value(), "/", contract.restart_count, "/")),
        store_(std::move(store)) {}
  ~NodeDoctor() { RemoveFiles(); }

  absl::StatusOr<std::string> Examine() {
    CONVENE_ASSIGN_OR_RETURN(const auto server, ProbeServer::Start());
    CONVENE_RETURN_IF_ERROR(Report(server->port()));
    CONVENE_ASSIGN_OR_RETURN(reports_, Gather<pb::NodeReport>("report/"));
    CONVENE_RETURN_IF_ERROR(Probe());
    CONVENE_ASSIGN_OR_RETURN(probes_, Gather<pb::NodeProbes>("probes/"));
    std::vector<Finding> findings = MergeFindings(reports_);
    for (Finding& finding : CompareNodes(reports_, probes_)) findings.push_back(std::move(finding));
    // All nodes find the same, so all of them measure, or none. A way that is closed would be
    // waited for.
    const bool is_open = agent::WorstOf(findings) != Severity::kError;
    if (is_open && nodes_ > 1) MeasureLinks(&findings);
    if (contract_.rank == 0) {
      CONVENE_RETURN_IF_ERROR(options_.show(nodes_, findings));
      CONVENE_RETURN_IF_ERROR(store_->Set(VerdictKey(), ErrorLines(findings)));
    }
    return Await();
  }

  // Of a rank that leaves the look to its node's first one: all of it.
  absl::StatusOr<std::string> Await() { return store_->Get(VerdictKey(), 4 * options_.timeout); }

 private:
  std::string VerdictKey() const { return prefix_ + "verdict"; }

  template <typename Message>
  absl::Status Tell(const char* stage, const Message& message) {
    return store_->Set(absl::StrCat(prefix_, stage, node_), message.SerializeAsString());
  }

  template <typename Message>
  absl::StatusOr<std::vector<Message>> Gather(const char* stage) {
    const MonotonicTime deadline = Clock::Real().Now() + options_.timeout;
    std::vector<Message> messages(nodes_);
    for (int node = 0; node < nodes_; ++node) {
      const absl::Duration left = std::max(deadline - Clock::Real().Now(), absl::Milliseconds(100));
      const auto text = store_->Get(absl::StrCat(prefix_, stage, node), left);
      if (absl::IsDeadlineExceeded(text.status())) {
        return absl::DeadlineExceededError(absl::StrCat(
            "node ", node,
            node < static_cast<int>(reports_.size())
                ? absl::StrCat(" (", reports_[node].host(), ")")
                : "",
            " of ", nodes_, " has told nothing for ", absl::FormatDuration(options_.timeout),
            ": see its output, and run `convene doctor` there"));
      }
      CONVENE_RETURN_IF_ERROR(text.status());
      if (!messages[node].ParseFromString(*text)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "node ", node, " told something unknown: is another version of Convene there?"));
      }
    }
    return messages;
  }

  absl::Status Report(int port) {
    CONVENE_ASSIGN_OR_RETURN(
        const auto store_addresses,
        rendezvous::ResolveHost(contract_.master_addr, kProbeTimeout, contract_.master_port));
    CONVENE_ASSIGN_OR_RETURN(const std::string address,
                             SourceTowards(store_addresses[0].get(), store_addresses[0].length));
    const agent::MachineFacts facts =
        agent::ReadFacts({.folders = options_.folders, .environment = options_.environment});
    pb::NodeReport report;
    report.set_host(facts.host);
    report.set_address(address);
    report.set_port(port);
    for (const agent::Interface& interface : facts.interfaces) {
      for (const std::string& each : interface.addresses) report.add_addresses(each);
    }
    report.set_mark(
        absl::StrCat(absl::Hex(RandomU64(), absl::kZeroPad16), " of node ", node_, "\n"));
    std::vector<Finding> findings = agent::Diagnose(facts);
    if (!options_.service.empty()) {
      findings.push_back(AskHealthService(options_.service));
    }
    for (const Finding& finding : findings) {
      pb::Finding* const told = report.add_findings();
      told->set_severity(static_cast<int>(finding.severity));
      told->set_subject(finding.subject);
      told->set_what(finding.what);
      told->set_why(finding.why);
      told->set_advice(finding.advice);
    }
    auto& traits = *report.mutable_traits();
    for (auto& [name, value] : TraitsOf(facts, address)) traits[name] = value;
    traits[kBuildTrait] = BuildOf("/proc/self/exe");
    traits[kTrainerTrait] = BuildOf(FindTrainer().value_or(""));
    for (const std::string& path : options_.folders) {
      pb::Folder* const folder = report.add_folders();
      folder->set_path(path);
      folder->set_write_bytes_per_second(WriteSpeed(FileOf(path, node_), report.mark()));
    }
    return Tell("report/", report);
  }

  absl::Status Probe() {
    pb::NodeProbes probes;
    // Ways that drop packets, and a name service that does not answer, cost their whole time: the
    // others must hear of them all the same. A peer that was not tried then has no fault.
    const MonotonicTime probes_end = Clock::Real().Now() + options_.timeout / 2;
    // Each begins with its next neighbour, so that no node is asked by all at once.
    for (int step = 1; step < nodes_ && Clock::Real().Now() < probes_end; ++step) {
      const int node = (node_ + step) % nodes_;
      *probes.add_peers() = ProbePeer(node, reports_[node], kProbeTimeout);
    }
    for (pb::PeerProbe& peer : *probes.mutable_peers()) {
      if (Clock::Real().Now() >= probes_end) break;
      LookUpNames(reports_[peer.node()], kProbeTimeout, &peer);
    }
    const MonotonicTime deadline = Clock::Real().Now() + kFilesAppear;
    for (const std::string& path : options_.folders)
      probes.add_files_seen(SeeFiles(path, deadline));
    return Tell("probes/", probes);
  }

  int SeeFiles(const std::string& folder, MonotonicTime deadline) {
    for (;;) {
      int seen = 0;
      // A client of a network file system may see a name before what is in the file.
      for (int node = 0; node < nodes_; ++node) {
        seen += BeginsWith(FileOf(folder, node), reports_[node].mark()) ? 1 : 0;
      }
      // Of a folder of its own a node sees its own file; that needs no patience.
      if (seen == nodes_ || seen <= 1 || Clock::Real().Now() > deadline) return seen;
      Clock::Real().SleepFor(kLook);
    }
  }

  std::string FileOf(const std::string& folder, int node) const {
    return absl::StrCat(folder, "/.convene-doctor.", contract_.master_port, ".", node);
  }

  void RemoveFiles() {
    for (const std::string& path : options_.folders) RemoveTree(FileOf(path, node_)).IgnoreError();
  }

  // By `convene bench --pairs all_reduce` between the nodes' first ranks; rank 0's tells the
  // tables.
  void MeasureLinks(std::vector<Finding>* findings) {
    const auto result = RunBench();
    if (contract_.rank != 0) return;
    if (!result.ok()) {
      findings->push_back(UnmeasuredLinks(std::string(result.status().message())));
      return;
    }
    findings->push_back(CollectiveFinding(*result));
    for (Finding& finding : LinkFindings(*result)) findings->push_back(std::move(finding));
  }

  absl::StatusOr<worker::BenchResult> RunBench() {
    // A node without the program would be waited for, so all nodes look at all reports.
    for (const pb::NodeReport& report : reports_) {
      const auto trainer = report.traits().find(kTrainerTrait);
      if (trainer != report.traits().end() && !trainer->second.empty()) continue;
      return absl::NotFoundError(absl::StrCat(report.host(), " has no program convene-train"));
    }
    CONVENE_ASSIGN_OR_RETURN(const std::string program, FindTrainer());
    // The first ranks of the nodes are a run of their own, without an agent: a program that met its
    // keys in the store would dial ranks that are gone.
    const std::string run_id =
        absl::StrCat(contract::kRunId, "=\"$", contract::kRunId, ".doctor\" ");
    const std::string command = absl::StrCat(
        "env -u ", ::convene::contract::kSession, " -u ", contract::kProgress, " ", run_id,
        contract::kRank, "=", node_, " ", contract::kWorldSize, "=", nodes_, " ",
        contract::kLocalRank, "=0 ", contract::kLocalWorldSize,
        "=1 {} bench --pairs --json --maxbytes=16M --stepfactor=128 --iters=5 --warmup-iters=2 "
        "--timeout=30 all_reduce || [ $? = 1 ]");  // 1: measured, and a sum is wrong
    CONVENE_ASSIGN_OR_RETURN(
        const auto stream,
        worker::OpenCommand({.path = "", .command = worker::CommandFor(command, program)},
                            options_.timeout));
    std::string text(kBenchBytesMax, '\0');
    CONVENE_ASSIGN_OR_RETURN(const size_t size, stream->Read(text.data(), text.size()));
    text.resize(size);
    if (contract_.rank != 0) return worker::BenchResult();
    return worker::ParseBenchJson(text);
  }

  const NodesOptions& options_;
  const worker::Contract& contract_;
  const int nodes_;
  const int node_;
  const std::string prefix_;  // of this attempt's keys
  const std::unique_ptr<rendezvous::StoreClient> store_;
  std::vector<pb::NodeReport> reports_;
  std::vector<pb::NodeProbes> probes_;
};

}  // namespace

absl::StatusOr<std::string> ExamineNodes(const NodesOptions& options,
                                         const worker::Contract& contract) {
  CONVENE_ASSIGN_OR_RETURN(
      auto store, rendezvous::StoreClient::Connect(contract.master_addr, contract.master_port,
                                                   options.timeout));
  NodeDoctor doctor(options, contract, NodesOf(options.environment, contract), std::move(store));
  return contract.local_rank == 0 ? doctor.Examine() : doctor.Await();
}

}  // namespace convene::launcher
