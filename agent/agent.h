// One node's agent: joins the rendezvous, runs the workers of each epoch, watches, restarts.
#pragma once

#include <string>

#include "agent/options.h"

namespace convene::agent {

// The command's end: main()'s exit code and the last words.
struct AgentResult {
  int exit_code = 0;        // by tools/base/exit_code.h
  std::string explanation;  // one paragraph for the person; empty on success
};

// Blocks until the job is over for this node and, where this process hosts the rendezvous of other
// jobs, until these are over too or a signal of options.ending_signals comes. Call it from the main
// thread (workers die with the thread that spawned them), with options.ending_signals blocked in
// every thread: it takes them by signalfd, stops the workers in order and leaves.
AgentResult RunAgent(const AgentOptions& options);

}  // namespace convene::agent
