// One node's agent: joins the rendezvous, runs the workers of each epoch, watches, restarts.
#pragma once

#include "agent/core/machine.h"
#include "agent/options.h"

namespace convene::agent {

// Blocks until the job is over for this node and, where this process hosts the rendezvous of other
// jobs, until these are over too or a signal of options.ending_signals comes. Call it from the main
// thread (workers die with the thread that spawned them), with options.ending_signals blocked in
// every thread: it takes them by signalfd, stops the workers in order and leaves.
Result RunAgent(const AgentOptions& options);

}  // namespace convene::agent
