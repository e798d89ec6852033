// All settings of one run of the agent.
#pragma once

#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/quorum/messages.h"

namespace convene::agent {

// A choice of a worker's streams, by torchrun's numbers.
enum class Streams { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };

// "3", or "0:1,1:2" by local rank (the others: none).
struct StreamsByRank {
  Streams others = Streams::kNone;
  std::map<int, Streams> by_local_rank;

  Streams Of(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? others : found->second;
  }
};

// Where the workers' output goes; agent/output/run_logs.h draws the folders.
struct LogOptions {
  std::string directory;    // --log-dir; "" with a redirect or tee: a new one in $TMPDIR or /tmp
  StreamsByRank redirects;  // to the file only
  StreamsByRank tee;        // to the file and to the console
  std::set<int> shown_local_ranks;  // --local-ranks-filter; empty: all
  // Lines with one of these substrings also go to filtered_stdout.log, filtered_stderr.log.
  std::vector<std::string> stdout_filters;
  std::vector<std::string> stderr_filters;
  // Before each line on the console: ${role_name} ${local_rank} ${rank} ${hostname} ${time}.
  std::string prefix_template = "[${rank}] ";
  bool prefix_all = true;      // false: only lines of teed streams have the prefix, as in torchrun
  int64_t max_file_bytes = 0;  // then the file is rotated: x.log -> x.log.1.gz; 0: never
  int max_old_files = 5;       // rotated ones kept of each file
};

// The time from the first request to a worker (session line, signal) to its SIGKILL, by the reason
// of the stop.
struct StopGraces {
  absl::Duration signal = absl::Seconds(30);      // the command itself was told to end
  absl::Duration checkpoint = absl::Seconds(30);  // a membership change: they may save first
  absl::Duration abort = absl::Seconds(30);  // a peer failed: the workers cannot finish their step
};

// For processes that workers leave running when they end with 0 (an upload in the background).
struct LeftoverOptions {
  absl::Duration grace = absl::Seconds(30);  // to finish by itself; then it is ended
  // As under torchrun, leftovers are never ended. The agent waits, for the grace, only for
  // processes that hold the workers' output.
  bool left_alone = false;
};

enum class NumaBinding { kNone, kNode, kSocket, kExclusive, kCoreComplex };

// The time after which a worker that tells its progress (CONVENE_PROGRESS) hangs. Zero: no fixed
// limit.
struct HangLimits {
  absl::Duration startup;     // from its start to its first finished step
  absl::Duration step;        // between two finished steps
  absl::Duration checkpoint;  // in phase "checkpoint"
  bool automatic = true;      // where a limit is zero, one is learnt from the steps seen
};

struct HealthCheck {
  std::string command;  // for /bin/sh -c, before each epoch; not 0: this node is unfit; "" = none
  // Runs in the command's place, without a shell: path and arguments. Empty: the command itself.
  std::vector<std::string> program;
  absl::Duration timeout = absl::Seconds(60);
};

// Constant for the whole run; filled and validated by launcher/job_spec.
struct AgentOptions {
  std::vector<std::string> command;  // program (found in PATH) and arguments
  // The arguments are templates with the name local_rank, as under torchrun.
  bool local_rank_in_arguments = false;
  rendezvous::Hello hello;  // this node's name and the job's description
  std::string endpoint;  // "host:port" of the rendezvous, or several (rendezvous/client/places.h)
  rendezvous::Credentials credentials;  // empty: the rendezvous takes everybody
  // Whether this process may host the rendezvous when nothing answers at the endpoint: the
  // endpoint's host is this machine.
  bool may_host = false;
  // Where this process hosts the rendezvous, no other run may use it: the numbers of another job
  // may lead to the same port.
  bool hosts_own_run_only = false;
  // The advice where another program, or another run, has the endpoint's port; "": none.
  std::string taken_port_advice;
  absl::Duration connect_timeout = absl::Seconds(60);
  // Another living agent with this node rank is a predecessor that will end (Kubernetes starts a
  // pod's successor early): this one asks again within connect_timeout. Otherwise it is a slip, and
  // a usage error.
  bool awaits_node_rank = false;
  std::string store_host;  // address that other nodes reach this one by
  // The address was only detected: should the machine get another one, the stream's own address
  // takes its place.
  bool store_host_may_change = false;
  int store_port = 0;  // --master-port; 0 = any
  // Static jobs: where this process hosts the rendezvous, its port is the workers' store as well,
  // so that scripts which name the port find the store there, as under torchrun.
  bool store_at_rendezvous = false;
  size_t store_bytes_max = 0;  // rendezvous::StoreServer::Options::bytes_max
  // Of each epoch that this node is in: its store takes clients from every address, and not only
  // from those of its nodes.
  bool open_store = false;
  StopGraces stop_graces;
  LeftoverOptions leftovers;
  // The local rank of the worker that gets this command's terminal; none: a single worker gets it.
  std::optional<int> debug_rank;
  // These signals end the run: workers get the same signal, then this process leaves. The caller
  // blocks them in every thread.
  std::vector<int> ending_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  // The time for which a worker's death by one of them is held before it counts as a failure: Slurm
  // (proctrack/linuxproc) signals every process of a step itself, all within 10 ms, and this
  // process's own signal may come last.
  absl::Duration echo_patience = absl::Milliseconds(50);
  // The time after SIGKILL: workers that are still there then hang in the kernel, and the agent
  // ends with 71.
  absl::Duration kill_patience = absl::Seconds(30);
  std::map<std::string, std::string> extra_environment;
  LogOptions log;
  HangLimits hang_limits;
  HealthCheck health_check;
  NumaBinding numa_binding = NumaBinding::kNone;
  int warm_workers = 0;              // spares to keep (agent/warm)
  bool virtual_local_rank = false;   // LOCAL_RANK 0 and one visible device for each worker
  bool propagate_exit_code = false;  // a failed job ends with the first failed worker's own code
};

}  // namespace convene::agent
