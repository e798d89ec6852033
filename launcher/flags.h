// The flags of each command: their spelling, targets and help.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/options.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

inline constexpr int kDefaultRendezvousPort = 29400;

// `convene run`, as written, each number within its limits; launcher/job_spec and worker_options
// interpret it. nullopt: not given.
struct RunFlags {
  bool as_torchrun = false;     // called under that name: its defaults where ours differ
  agent::AgentOptions options;  // where a flag's value is the option's: spares, debug_rank, ...

  bool standalone = false;
  std::optional<std::string> nnodes;          // "N" or "MIN:MAX"
  std::optional<std::string> nproc_per_node;  // a number, "cpu", "gpu", "xpu" or "auto"
  std::optional<std::string> rdzv_endpoint;
  std::optional<std::string> rdzv_id;
  std::optional<std::string> rdzv_backend;
  std::string rdzv_conf;  // "key=value,..."
  std::optional<int> node_rank;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  std::optional<std::string> local_addr;

  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string start_method = "spawn";

  double monitor_interval_seconds = 0.1;
  absl::Duration shutdown_timeout = absl::Seconds(30);
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

  std::optional<std::string> redirects;  // "3", or "0:1,1:2" by local rank
  std::optional<std::string> tee;
  std::string log_line_prefix_template;
  std::string duplicate_stdout_filters;  // "apple,orange"; ",," is a comma
  std::string duplicate_stderr_filters;
  std::string event_log_handler = "null";
  std::string logs_specs;

  // Beyond torchrun.
  std::optional<std::string> topology;
  absl::Duration admission_delay = absl::Seconds(3);
  std::string stop_grace;             // "signal=S,checkpoint=S,abort=S"
  std::string warm_workers = "0";     // "N", "auto"
  std::string hang_timeout = "auto";  // "startup=S,step=S,checkpoint=S", "auto", "off"
  std::string log_max_bytes;          // "100M"
  std::string outcome_file;           // "": none
  bool doctor = false;                // all nodes are looked at before the first epoch

  std::vector<std::string> command;           // the program and its own arguments, untouched
  std::vector<std::string> from_environment;  // "--nnodes=2 (PET_NNODES)": for the log
};

struct ServeFlags {
  static constexpr absl::Duration kLeaderLease = absl::Seconds(4);
  std::string host = "0.0.0.0";
  rendezvous::Credentials credentials;  // empty: everybody may join
  int port = kDefaultRendezvousPort;    // 0: any free one, said in the log
  std::string state_dir;  // "": the jobs are forgotten when it ends, without a journal
  bool standby = false;   // daemons take turns with state_dir
  std::optional<rendezvous::etcd::Place> journal;
  rendezvous::etcd::TlsFiles etcd_tls;
  absl::Duration leader_lease = kLeaderLease;  // whole seconds; with a journal
  size_t store_bytes_max = 0;                  // 0: StoreServer's default
  bool no_store = false;
};

struct StatusFlags {
  std::string endpoint = "localhost";  // "host:port" once it is read
  rendezvous::Credentials credentials;
  std::string job_id;  // "": all jobs
  bool watch = false;  // until a signal comes
  bool json = false;
};

struct LogsFlags {
  std::string endpoint = "localhost";  // "host:port" once it is read
  rendezvous::Credentials credentials;
  rendezvous::LogRequest request;
  bool json = false;
  std::string prefix_template;  // agent::LogOptions::prefix_template

  bool stdout_only = false;  // these three: in `request` and `prefix_template` once all is read
  bool stderr_only = false;
  bool timestamps = false;
};

// A command's flags, and its words beside them. `reader` keeps `flags`, and fills it when it reads.
// Where `reader` is like argparse, the flags of a run have the defaults of torchrun.
void AddFlags(FlagReader* reader, RunFlags* flags);
void AddFlags(FlagReader* reader, ServeFlags* flags);
void AddFlags(FlagReader* reader, StatusFlags* flags);
void AddFlags(FlagReader* reader, LogsFlags* flags);

// The endpoint of a rendezvous, by what it takes this process, and the name of a run.
void AddPlaceFlags(FlagReader* reader, std::string* endpoint, rendezvous::Credentials* credentials,
                   std::string* job_id);
// AddJoinTokenFlag's, and --tls-cert, --tls-key, --tls-ca.
void AddCredentialFlags(FlagReader* reader, rendezvous::Credentials* credentials);
// --join-token-file, or the variable CONVENE_JOIN_TOKEN.
void AddJoinTokenFlag(FlagReader* reader, std::string* token);
// --store-memory: the bound of each store that the program serves.
void AddStoreMemoryFlag(FlagReader* reader, size_t* bytes_max);
// A flag for ranks, "0,3" or "0-7".
void AddRanksFlag(FlagReader* reader, const std::string& name, int most, std::set<int>* ranks,
                  const std::string& help);
// Adds the flags of a run that torchrun has too (launcher/README.md says where their meanings
// differ).
void AddTorchrunFlags(FlagReader* reader, RunFlags* flags);

}  // namespace convene::launcher
