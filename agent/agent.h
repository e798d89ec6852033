// One node's agent: joins the rendezvous, runs the workers of each epoch, watches, restarts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/messages.h"

namespace convene::agent {

// Constant for the whole run; filled and validated by launcher/job_spec.
struct AgentOptions {
  std::vector<std::string> command;  // program (found in PATH) and arguments
  rendezvous::Hello hello;           // who this node is and what the job is
  std::string endpoint;              // "host:port" of the rendezvous
  // Whether this process may host the rendezvous when nobody answers at the endpoint, because the
  // endpoint's host is this machine.
  bool may_host = false;
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration stop_grace = absl::Seconds(30);  // TERM to KILL, --shutdown-timeout
  std::string store_host;                         // address that other nodes reach this one by
  int store_port = 0;                             // --master-port; 0 = any
  std::map<std::string, std::string> extra_environment;
  std::string log_directory;  // "" = no files; else
                              // <dir>/<run_id>_<rand>/attempt_<n>/<local_rank>/{stdout,stderr}.log
  bool prefix_lines = true;   // "[rank] " before each line of a worker
};

// How the command ended: what main() returns and the last words.
struct AgentResult {
  int exit_code = 0;        // by tools/base/exit_code.h
  std::string explanation;  // one paragraph for the person; empty on success
};

// Blocks until the job is over for this node. Call from the main thread (workers die with the
// thread that spawned them), with SIGTERM, SIGINT, SIGHUP and SIGQUIT blocked in every thread: it
// takes them by signalfd, stops the workers in order and leaves.
AgentResult RunAgent(const AgentOptions& options);

}  // namespace convene::agent
