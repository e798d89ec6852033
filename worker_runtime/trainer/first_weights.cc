#include "worker_runtime/trainer/first_weights.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {
namespace {

using Source = std::unique_ptr<StateSource>;

absl::StatusOr<Source> OpenFirst(const TrainOptions& options) {
  CONVENE_ASSIGN_OR_RETURN(Weights weights, OpenWeights(options.init_from));
  ModelConfig model = options.model;
  model.adapter = {};
  const std::string wanted = ShapeText(model);
  if (weights.source->info().model == wanted) return std::move(weights.source);
  return absl::InvalidArgumentError(absl::StrCat(
      "--init-from ", options.init_from, " holds a model of shape ", weights.source->info().model,
      ", and this run's is ", wanted, ": leave out --model, and the flags that change the shape"));
}

absl::StatusOr<Source> OpenFirstAdapter(const TrainOptions& options) {
  CONVENE_ASSIGN_OR_RETURN(Adapter adapter, OpenAdapter(options.init_adapter));
  const std::string of_flag = absl::StrCat("--init-adapter ", options.init_adapter);
  const AdapterConfig& wanted = options.model.adapter;
  if (adapter.config.rank != wanted.rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(of_flag, " holds adapters of rank ", adapter.config.rank,
                     ", and this run's have rank ", wanted.rank, ": leave out --lora-rank"));
  }
  const absl::Status fits = CheckAdapterFits(adapter, options.model);
  if (!fits.ok()) return Annotate(fits, of_flag);
  return std::move(adapter.source);
}

// All ranks load, or all hear why one cannot.
absl::Status Load(WeightSet set, const absl::StatusOr<Source>& source, Engine& engine,
                  absl::FunctionRef<void(double done)> tell, Collective& world, Stream& stream) {
  CONVENE_RETURN_IF_ERROR(Agree(source.status(), "open the weights to begin with", world, stream));
  absl::Status read;
  CONVENE_RETURN_IF_ERROR(engine.LoadWeights(set, **source, tell, &read));
  return Agree(read, "read the weights to begin with", world, stream);
}

}  // namespace

absl::Status MakeFirstWeights(const TrainOptions& options, bool resumed, Engine& engine,
                              absl::FunctionRef<void(double done)> tell, Collective& world,
                              Stream& stream) {
  const bool has_adapters = options.model.adapter.is_on();
  if (resumed && !has_adapters) return absl::OkStatus();
  const WeightSet of_model = has_adapters ? WeightSet::kFrozen : WeightSet::kAll;
  CONVENE_RETURN_IF_ERROR(options.init_from.empty()
                              ? engine.InitializeWeights(of_model, tell)
                              : Load(of_model, OpenFirst(options), engine, tell, world, stream));
  if (resumed || !has_adapters) return absl::OkStatus();
  return options.init_adapter.empty()
             ? engine.InitializeWeights(WeightSet::kLearning, tell)
             : Load(WeightSet::kLearning, OpenFirstAdapter(options), engine, tell, world, stream);
}

}  // namespace convene::worker
