// The signals a process waits for in place of being interrupted.
#pragma once

#include <signal.h>

#include <vector>

#include "tools/base/unique_fd.h"

namespace convene {

sigset_t SignalSet(const std::vector<int>& signals);

// From here on they wait for whoever asks for them. Before the first thread: threads inherit it.
void BlockSignals(const std::vector<int>& signals);

// Blocks them; the descriptor (signalfd(2), non-blocking) is readable when one has come.
UniqueFd TakeSignals(const std::vector<int>& signals);

// Whoever started this process had it ignore the signal, as nohup does SIGHUP.
bool IsIgnored(int signal);

}  // namespace convene
