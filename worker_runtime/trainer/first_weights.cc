#include "worker_runtime/trainer/first_weights.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {
namespace {

absl::StatusOr<Weights> Open(const TrainOptions& options) {
  CONVENE_ASSIGN_OR_RETURN(Weights weights, OpenWeights(options.init_from));
  const std::string wanted = ShapeText(options.model);
  if (weights.source->info().model == wanted) return weights;
  return absl::InvalidArgumentError(absl::StrCat(
      "--init-from ", options.init_from, " holds a model of shape ", weights.source->info().model,
      ", and this run's is ", wanted, ": leave out --model, and the flags that change the shape"));
}

}  // namespace

absl::Status LoadFirstWeights(const TrainOptions& options, Engine& engine,
                              absl::FunctionRef<void(double done)> tell, Collective& world,
                              Stream& stream) {
  const absl::StatusOr<Weights> weights = Open(options);
  CONVENE_RETURN_IF_ERROR(Agree(weights.status(), "open the weights to begin with", world, stream));
  absl::Status read;
  CONVENE_RETURN_IF_ERROR(engine.LoadWeights(WeightSet::kAll, *weights->source, tell, &read));
  return Agree(read, "read the weights to begin with", world, stream);
}

}  // namespace convene::worker
