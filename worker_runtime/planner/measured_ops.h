// PURE. A rank's own arithmetic as it was measured, in place of a table's.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/planner/hardware.h"
#include "worker_runtime/planner/job.h"
#include "worker_runtime/planner/step_time.h"

namespace convene::worker {

// Some ops of one kind, which took so long together.
struct OpSample {
  double rows = 0;   // tokens; of attention the sequence's
  double width = 0;  // columns; of attention a head's
  double work = 0;   // FLOPs; of passes bytes
  double seconds = 0;
};

struct MeasuredOps {
  DType dtype = DType::kFloat32;
  std::vector<OpSample> products, passes, attention;
};

// The job's type among the measured ones becomes `efficiency`, as shares of the GPU's peak, and the
// memory's bandwidth. The peak stays: MFU is of the data sheet's. Of a CPU, which has none, the
// fitted rate becomes the peak. A product's time a FLOP is fitted as a + b / rows + c / width, a
// pass's time as bytes / bandwidth + a constant, an attention's time a FLOP, of the samples with
// the nearest sequence, as a + b / head. Figures that were not measured stay. Nothing changes where
// no type is the job's.
void UseMeasured(const std::vector<MeasuredOps>& measured, const PlanJob& job, Gpu* gpu,
                 Efficiency* efficiency);

}  // namespace convene::worker
