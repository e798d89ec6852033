// LayoutCases trained and compared with one process: the parts that the tests of random layouts
// share.
#pragma once

#include <cstdint>
#include <string>

#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/layout_case.h"
#include "worker_runtime/trainer/testing/training_run.h"

namespace convene::worker::testing {

// The case's training on CPUs, or with the options that it has on GPUs. REQUIRES: the case is
// legal.
// `reproducible`: TrainOptions'.
TrainingRun RunOf(const LayoutCase& the_case, bool on_gpus = OnGpus(), bool reproducible = false);

// How the case differs from one process on a CPU; "" where it does not.
std::string Difference(const LayoutCase& the_case);

// A whole test case: fails, by Catch2, when the case of a seed from 1 to `seeds` differs; prints
// the smallest such case that shrinking finds, and `command`, which runs it. In place of
// these CONVENE_LAYOUT_CASE runs one case by its text, CONVENE_LAYOUT_SEED the case of one seed;
// CONVENE_LAYOUT_SECONDS goes on for so long with cases that no run before has seen.
void CheckSeeds(const std::string& command, uint64_t seeds);

}  // namespace convene::worker::testing
