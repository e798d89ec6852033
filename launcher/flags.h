// The command line, read once. The only file that knows CLI11.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/environment.h"

namespace convene::launcher {

inline constexpr int kDefaultRendezvousPort = 29400;

// `convene run`, as written; launcher/job_spec says what it means. nullopt: not given.
struct RunFlags {
  bool standalone = false;
  std::optional<std::string> nnodes;  // "N" or "MIN:MAX"
  std::string nproc_per_node = "1";   // a number, "cpu", "gpu" or "auto"
  std::optional<std::string> rdzv_endpoint;
  std::optional<std::string> rdzv_id;
  std::string rdzv_backend = "convene";
  std::string rdzv_conf;  // "key=value,..."
  int max_restarts = 0;
  std::optional<int> node_rank;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  std::optional<std::string> local_addr;
  std::string log_dir;
  std::optional<double> shutdown_timeout_seconds;
  bool module = false;
  bool no_python = false;
  std::string role = "default";
  std::vector<std::string> command;           // the program and its own arguments, untouched
  std::vector<std::string> from_environment;  // "--nnodes=2 (PET_NNODES)": for the log
};

struct ServeFlags {
  std::string host = "0.0.0.0";
  int port = kDefaultRendezvousPort;  // 0: any free one, said in the log
};

struct StatusFlags {
  std::string endpoint;  // "host" or "host:port"
  std::string job_id;    // "": all jobs
};

// Help, version or the exit codes: to stdout, then exit 0.
struct TextToPrint {
  std::string text;
};

using CommandLine = std::variant<RunFlags, ServeFlags, StatusFlags, TextToPrint>;

// `arguments` are argv without argv[0]. Flags may be spelled with dashes or underscores; reading
// stops at the first word that is no flag, which is the program: what follows is its own.
// PET_<FLAG> in the environment gives the default of a flag of `run`. InvalidArgument for anything
// not understood; the text names the nearest known flag or command.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const EnvironmentLookup& environment);

}  // namespace convene::launcher
