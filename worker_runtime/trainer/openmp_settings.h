// PURE. The environment that the OpenMP library has to find when the trainer is loaded: the library
// reads its variables before main begins, and has no call for some of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/base/environment.h"

namespace convene::worker {

// The variables, with their values, that have to change; empty: none.
//
// OMP_NUM_THREADS: at most `usable_cpus` (CountUsableCpus). Threads that share a CPU wait for each
// other at the end of each parallel loop. The library's own default is `bound_cpus`
// (CountBoundCpus), which knows no quota of a container.
//
// GOMP_SPINCOUNT, unless it or OMP_WAIT_POLICY is set: how often a thread looks for the next loop
// before it sleeps. 1000 looks, 20 us, are more than the time between two loops of a small model.
// The library's own 300000 (5 ms) gained no speed; where another process held one of two CPUs, a
// thread then looked on while that CPU was not free (llama-tiny with 2 threads: 576 tokens a second
// in place of 4,600 and more).
std::vector<std::pair<std::string, std::string>> OpenMpSettings(
    const EnvironmentLookup& environment, int bound_cpus, int usable_cpus);

}  // namespace convene::worker
