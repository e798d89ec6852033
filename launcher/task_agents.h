// PURE. Tells by what the command line means whether the tasks that a scheduler starts on a node
// are one agent or several.
#pragma once

#include <string>

#include "launcher/cluster/detected_job.h"
#include "launcher/flags.h"
#include "rendezvous/quorum/messages.h"

namespace convene::launcher {

// `srun --ntasks-per-node=8 torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8`: the line means one
// agent a node, and torchrun would start eight, of which most find no seat.
bool MeansOneAgentANode(const RunFlags& flags, const rendezvous::Hello& hello,
                        const DetectedJob& detected);

// `srun --ntasks-per-node=8 convene run --nnodes=$SLURM_NTASKS --nproc-per-node=1`: the line means
// an agent for each task. The same rule holds on every node, also on one that has a single task.
// Where --nproc-per-node is the tasks of each node, the line means one agent a node, and --nnodes
// may count nodes of other jobs: an array often has as many jobs as a node has GPUs.
bool MeansOneAgentATask(const RunFlags& flags, const rendezvous::Hello& hello,
                        const DetectedJob& detected);

// LocalTask::job: agents with the same four flags would meet, others would not.
std::string JobOfTask(const RunFlags& flags);

}  // namespace convene::launcher
