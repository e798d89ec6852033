// PURE. The meaning of a request to stop under Slurm: whether the job is to be put back into
// Slurm's queue by us, and how long it has.
//
// A preemption with a GraceTime sends TERM at once and ends the job when the grace is over. Up to
// Slurm 23.11 a job that leaves within the grace, with whatever exit code, counts as ended
// (COMPLETED or FAILED) and is not requeued: an agent that saves and leaves politely would lose the
// job. So it asks for the requeue itself, as the job's owner may. From 24.05 on such a job counts
// as preempted, and Slurm requeues it too; a request on top changes nothing then: the job goes back
// to the queue once. Where the site's PreemptMode is CANCEL, a preempted job is to end, and nobody
// requeues it.
//
// Every other sender of TERM has another meaning, and is left alone: a person's scancel, a time
// limit, --signal. A requeue, and a preemption without grace, have been decided by Slurm when TERM
// comes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/environment.h"

namespace convene::agent {

// The name under which scontrol knows this job: SLURM_JOB_ID. The last task of an array has the
// array's own number there, which would mean all tasks: it is ARRAY_TASK. (SLURM_ARRAY_* alone do
// not prove a task: a job that a task submits inherits them.) Empty where this is no job of Slurm,
// or where another node's agent asks: the first of each step does.
std::string SlurmJobToAskFor(const EnvironmentLookup& environment);

struct SlurmVerdict {
  bool requeue = false;
  std::string why;  // a clause for the log: "Slurm preempts job 35 (PreemptTime ...)"
};

// `shown`: what `scontrol -o show job` printed for `job`, one line of KEY=VALUE.
SlurmVerdict DecideRequeue(const std::string& job, const std::string& shown);

// The scontrol that tells the PreemptMode of the job of `shown`: its partition's, or its QOS's
// where the site has PreemptType=preempt/qos. `config`: what `scontrol show config` printed, ""
// where it did not answer.
std::vector<std::string> SlurmModeQuestion(const std::string& shown, const std::string& config);

// `verdict` of a job that may be requeued, after a look at what the site wants of preempted jobs:
// nothing is requeued where PreemptMode is CANCEL. It is the partition's or the QOS's; a QOS
// without one has slurm.conf's. `record`: the answer to SlurmModeQuestion, "" where there was none;
// a mode that is not to be known changes nothing.
SlurmVerdict HeedPreemptMode(SlurmVerdict verdict, const std::string& config,
                             const std::string& record);

// The time when Slurm means to end the job: EndTime of `shown` ("" where scontrol did not answer),
// else SLURM_JOB_END_TIME (23.02 and later), which a preemption does not move. `zone`: of the
// machine.
std::optional<absl::Time> SlurmEnd(const std::string& shown, const EnvironmentLookup& environment,
                                   absl::TimeZone zone);

// The line for the log where Slurm ends the job in `left`, before `grace`, which the workers have;
// "" where it leaves them the whole grace. `config`: as above.
std::string TellSlurmEnd(absl::Duration left, absl::Duration grace, const std::string& config);

}  // namespace convene::agent
