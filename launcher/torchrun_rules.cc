#include "launcher/torchrun_rules.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace convene::launcher {

RunFlags AsTorchrunReads(RunFlags flags, std::vector<std::string>* reasons) {
  std::vector<std::string> ignored;
  const auto ignore = [&](const std::string& name, auto& flag) {
    if (flag.has_value()) ignored.push_back(name);
    flag.reset();
  };
  if (!flags.rdzv_backend.has_value()) flags.rdzv_backend = "static";
  const bool is_static = *flags.rdzv_backend == "static";
  std::string because = "with --rdzv-backend " + *flags.rdzv_backend;
  if (flags.rdzv_endpoint == "") flags.rdzv_endpoint.reset();
  if (flags.rdzv_id == "") flags.rdzv_id.reset();
  if (flags.standalone) {
    because = "with --standalone";
    ignore("--rdzv-endpoint", flags.rdzv_endpoint);
  } else if (is_static && flags.rdzv_endpoint.has_value()) {
    because = "with --rdzv-endpoint";
  }
  if (flags.standalone || !is_static) ignore("--node-rank", flags.node_rank);
  if (flags.standalone || !is_static || flags.rdzv_endpoint.has_value()) {
    ignore("--master-addr", flags.master_addr);
    ignore("--master-port", flags.master_port);
  }
  if (!ignored.empty()) {
    reasons->push_back(absl::StrCat(because, " torchrun does not look at ",
                                    absl::StrJoin(ignored, ", "), ", and neither does this"));
  }
  return flags;
}

ConfReader ReaderOf(const RunFlags& flags, const rendezvous::Hello& hello) {
  if (!flags.as_torchrun) return ConfReader::kConvene;
  const bool has_place =
      hello.nodes_max > 1 || flags.rdzv_endpoint.has_value() || flags.master_port.has_value();
  const bool is_static = flags.rdzv_backend == "static" && !flags.standalone && has_place;
  return is_static ? ConfReader::kStatic : ConfReader::kC10d;
}

void DropRankOfOneNode(const rendezvous::Hello& hello, RunFlags* flags,
                       std::vector<std::string>* reasons) {
  const int rank = flags->node_rank.value_or(0);
  if (rank == 0 || hello.nodes_max > 1 || hello.spares > 0) return;
  reasons->push_back(absl::StrCat(
      "this job is one node without an endpoint: torchrun does not look at --node-rank ", rank,
      " there, and neither does this (for several nodes give --nnodes)"));
  flags->node_rank.reset();
}

}  // namespace convene::launcher
