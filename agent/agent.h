// One node's agent: joins the rendezvous, runs the workers of each epoch, watches, restarts.
#pragma once

#include <string>

#include "agent/options.h"

namespace convene::agent {

// How the command ended: what main() returns and the last words.
struct AgentResult {
  int exit_code = 0;        // by tools/base/exit_code.h
  std::string explanation;  // one paragraph for the person; empty on success
};

// Blocks until the job is over for this node and, where this process hosts the rendezvous of other
// jobs, until those are over too or a signal of options.ending_signals comes. Call from the main
// thread (workers die with the thread that spawned them), with options.ending_signals blocked in
// every thread: it takes them by signalfd, stops the workers in order and leaves.
AgentResult RunAgent(const AgentOptions& options);

}  // namespace convene::agent
