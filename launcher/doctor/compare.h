// PURE. The machines of one job beside each other: facts that have to be equal, ways between them,
// clocks, shared folders.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "agent/machine/diagnose.h"
#include "agent/machine/facts.h"
#include "proto/doctor.pb.h"
#include "worker_runtime/bench/result.h"

namespace convene::launcher {

namespace pb = ::convene::doctor::v1;

// Traits of a node whose GPUs are in one NVLink domain over nodes: its ClusterUUID, and the clique.
inline constexpr char kDomainTrait[] = "NVLink domain";
inline constexpr char kCliqueTrait[] = "NVLink clique";
// Traits of the installed programs, which the caller of TraitsOf adds: which build of Convene this
// is, and where its trainer's program is ("": nowhere).
inline constexpr char kBuildTrait[] = "Convene";
inline constexpr char kTrainerTrait[] = "convene-train";

// The facts that nodes of one job have in common, by name: versions, GPUs, limits, the network
// interface that has `address`, and the variables of NCCL, Gloo and PyTorch.
std::map<std::string, std::string> TraitsOf(const agent::MachineFacts& facts,
                                            const std::string& address);

// Findings about the nodes together. Element i of both is node i's. A subject has a good finding
// where nothing is wrong.
std::vector<agent::Finding> CompareNodes(const std::vector<pb::NodeReport>& reports,
                                         const std::vector<pb::NodeProbes>& probes);

// The collective check: all_reduce by size. An error where a sum is wrong.
agent::Finding CollectiveFinding(const worker::BenchResult& result);
// The slow nodes and links of the pairs that were measured, at most four links; else a good
// finding.
std::vector<agent::Finding> LinkFindings(const worker::BenchResult& result);
// Where the bench came to no result. An error where a long message of a collective had no answer:
// the nodes' ways were open to short messages before. `why`: the bench's last lines.
agent::Finding UnmeasuredLinks(const std::string& why);

// The findings of all nodes by themselves but the good ones: equal ones once, with the hosts that
// have them in front.
std::vector<agent::Finding> MergeFindings(const std::vector<pb::NodeReport>& reports);

}  // namespace convene::launcher
