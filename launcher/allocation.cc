#include "launcher/allocation.h"

#include "absl/strings/str_cat.h"

namespace convene::launcher {

absl::Status CheckAllocation(const DetectedJob& detected, const rendezvous::Hello& hello) {
  if (!detected.nodes.has_value()) return absl::OkStatus();
  const int nodes = *detected.nodes;
  const int most = hello.nodes_max + hello.spares;
  if (nodes >= hello.nodes_min && nodes <= most) return absl::OkStatus();
  const std::string found = absl::StrCat("but the scheduler started this command on ", nodes);
  if (most == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nnodes 1 is one node by itself, ", found,
        ", and each would train for itself. Write --nnodes ", nodes,
        ", or start one (`srun --nodes=1`); --standalone makes a job of its own of each"));
  }
  if (nodes < hello.nodes_min) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nnodes asks for ", hello.nodes_min, " node(s) at least, ", found,
        ": the job could never start. Ask for more nodes (`sbatch --nodes`, `srun --nodes`, "
        "`mpirun --host`), or write --nnodes ",
        nodes, ". If the others belong to another job, give --rdzv-endpoint and --rdzv-id"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--nnodes and --spares have room for ", most, " node(s), ", found,
      ": the others would have nothing to do. Write --nnodes ", nodes, ", or --spares ",
      nodes - hello.nodes_max, ", or start fewer (`srun --nodes=", most, "`)"));
}

bool Holds(Fact fact, const RunFlags& flags, const DetectedJob& detected, const JobSpec& spec) {
  const rendezvous::Hello& hello = spec.options.hello;
  switch (fact) {
    case Fact::kJobId:
      return !flags.rdzv_id.has_value() && hello.job_id == detected.job_id;
    case Fact::kNodes:
      return !flags.nnodes.has_value() ||
             (hello.nodes_min < hello.nodes_max && hello.nodes_expected == detected.nodes);
    case Fact::kNodeRank:
      return !flags.node_rank.has_value() && hello.node_rank == detected.node_rank;
    case Fact::kEndpoint:
      return !spec.standalone && !flags.rdzv_endpoint.has_value() && !flags.master_addr.has_value();
    case Fact::kOther:
      break;
  }
  return true;
}

}  // namespace convene::launcher
