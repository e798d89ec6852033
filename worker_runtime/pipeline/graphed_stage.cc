#include "worker_runtime/pipeline/graphed_stage.h"

namespace convene::worker {

absl::Status GraphedStage::Run(const StagePass& pass, Stream& stream) {
  switch (passes_.CutOf(pass)) {
    case GraphedPasses::Cut::kNone:
      return stage_.Run(pass, stream);
    case GraphedPasses::Cut::kPass:
      return graphs_.Run({pass.compute}, stream, [&] { return stage_.Run(pass, stream); });
    case GraphedPasses::Cut::kUnits:
      break;
  }
  StagePass by_units = pass;
  by_units.graphs = &graphs_;
  return stage_.Run(by_units, stream);
}

}  // namespace convene::worker
