// PURE. The flags that torchrun ignores: command lines often carry them along.
#pragma once

#include <string>
#include <vector>

#include "launcher/flags.h"
#include "launcher/rendezvous_conf.h"
#include "rendezvous/quorum/messages.h"

namespace convene::launcher {

// `flags` without those that torchrun ignores; a line in `reasons` names them.
RunFlags AsTorchrunReads(RunFlags flags, std::vector<std::string>* reasons);

// torchrun turns a static job of one node without a named place into c10d.
ConfReader ReaderOf(const RunFlags& flags, const rendezvous::Hello& hello);

// For a template that gives each machine its rank, and starts a job of one node on each: the rank
// of such a node has no effect, and a line in `reasons` says so. REQUIRES: ReaderOf says kC10d.
void DropRankOfOneNode(const rendezvous::Hello& hello, RunFlags* flags,
                       std::vector<std::string>* reasons);

}  // namespace convene::launcher
