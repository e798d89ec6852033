// The text of tools/deploy/slurm/train.sbatch.
#pragma once

namespace convene::launcher {

extern const char kTrainSbatch[];

}  // namespace convene::launcher
