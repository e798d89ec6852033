// PURE. NCCL's log in one line: the transports between the ranks, or why there are none.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace convene::worker {

struct TransportSummary {
  // "NCCL 2.28.9: 14 x P2P/CUMEM, NVLS, 2 x NET/IB/GDRDMA over mlx5_0". Counted are the outgoing
  // channels of this process, over all of its communicators.
  std::string line;
  // A problem that the operator should look at; empty when all is well.
  std::string warning;
};

// `log`: the log of one process under NCCL_DEBUG=INFO (debug_log.h). Unknown lines are passed over.
TransportSummary SummarizeTransports(absl::string_view log, const std::string& nccl_version);

// The log's words about communicators that could not be made: the network interface that NCCL
// chose, and its last warnings. "" where it says neither.
std::string ExplainFailure(absl::string_view log);

}  // namespace convene::worker
