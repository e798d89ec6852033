// PURE. How the facts that a scheduler tells fit to what flags say.
#pragma once

#include "absl/status/status.h"
#include "launcher/cluster/detected_job.h"
#include "launcher/flags.h"
#include "launcher/job_spec.h"
#include "rendezvous/quorum/messages.h"

namespace convene::launcher {

// Whether the nodes of `detected` are as many as `hello` asks for, where they meet at the
// scheduler's place, so that no others than its own can come. InvalidArgument names both numbers.
absl::Status CheckAllocation(const DetectedJob& detected, const rendezvous::Hello& hello);

// Whether `spec`, which is complete, has this fact as `detected` tells it, and no flag had a say.
bool Holds(Fact fact, const RunFlags& flags, const DetectedJob& detected, const JobSpec& spec);

}  // namespace convene::launcher
