// `convene doctor`: looks at this machine, or at all nodes of a job, and says what stands in the
// way of training. `convene preflight`: the same look before a job's program.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/command_table.h"
#include "launcher/flags.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

struct DoctorFlags {
  std::vector<std::string> folders;
  std::string service;  // AskHealthService's socket; "": none
  bool is_json = false;
  // Of the look at several nodes: as `convene run` has them.
  std::optional<std::string> nnodes, rdzv_endpoint, rdzv_id, local_addr;
  std::optional<int> node_rank;
  std::optional<absl::Duration> wait;  // for the other nodes to come; a minute
  rendezvous::Credentials credentials;
};

void AddFlags(FlagReader* reader, DoctorFlags* flags);

// Runs one node's part of a job: RunCommand.
using RunJobOf = std::function<absl::StatusOr<int>(const RunFlags& flags)>;

// `doctor`: with --nnodes it runs itself as the job's program, by `run`; where a launcher gave this
// process its rank, all nodes look at each other; else it looks at this machine. Exit code 71
// (kUnfitNode) where a finding is an error, else 0.
Command DoctorRow(const RunJobOf& run);

// `preflight`, which stands before the program of `convene run --doctor`: looks at all nodes once,
// before a job's first epoch, and becomes the program. Exit code 71 on every node where a finding
// is an error.
Command PreflightRow();

// The program of a job with the look before it.
std::vector<std::string> WithPreflight(std::vector<std::string> command);

// The meaning of --health-check's word "doctor": this program's `doctor`, path and argument.
std::vector<std::string> DoctorProgram();

}  // namespace convene::launcher
