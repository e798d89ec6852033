// SIGUSR2: where every thread of this process stands, on stderr.
#pragma once

namespace convene::worker {

// From now on SIGUSR2 writes the stack of each thread to stderr, one after the other, and the
// process goes on. Only async-signal-safe calls: also a process that hangs in malloc answers. A
// thread that does not answer within 100 ms (stopped, in the kernel, or SIGUSR2 blocked) is named
// as such; at most 256 threads and about 3 s. `program`: argv[0], for the symbols. Call from main,
// before threads start.
void InstallStackDump(const char* program);

}  // namespace convene::worker
