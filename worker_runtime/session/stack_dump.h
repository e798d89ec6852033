// SIGUSR2 writes the stack of every thread of this process to stderr.
#pragma once

namespace convene::worker {

// From now on SIGUSR2 writes the stack of each thread to stderr, one after the other, and the
// process goes on. It makes only async-signal-safe calls, so that a process that hangs in malloc
// answers too. A thread that does not answer within 100 ms (stopped, in the kernel, or SIGUSR2
// blocked) is named as such; at most 256 threads and about 3 s. `program`: argv[0], for the
// symbols. Call from main, before threads start.
void InstallStackDump(const char* program);

}  // namespace convene::worker
