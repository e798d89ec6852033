#include "worker_runtime/trainer/first_weights.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/checkpointing/choose_checkpoint.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {
namespace {

using Source = std::unique_ptr<StateSource>;

// Of the checkpoint from which the run goes on; "": it begins, or the checkpoint names none.
std::string BaseOfChosen(const TrainOptions& options) {
  Refused refused;  // RestoreCheckpoint tells them, and what else is wrong.
  const CheckpointChoice choice = ChooseCheckpoint(options, &refused);
  if (!choice.status.ok() || choice.origin == Origin::kNothing) return "";
  const auto reader = CheckpointReader::Open(PathOf(options, choice));
  return reader.ok() ? reader->info().base : "";
}

// Each start reads `step` in --init-from again, and a job that still saves there removes old ones.
void WarnOfWriter(const TrainOptions& options, const std::string& step) {
  const std::string writer = WriterOf(options.init_from);
  if (writer.empty()) return;
  spdlog::warn(
      "each start of this run reads {} again, and {} may remove it: {} is being written to. Copy "
      "that step and give the copy to --init-from, or let that job keep more "
      "(--checkpoint-keep)",
      step, writer, options.init_from);
}

// The path that all ranks take for this one. `base`, of rank 0: a step in it goes before the
// newest.
absl::StatusOr<std::string> Settle(const std::string& path, const std::string& base,
                                   Collective& world, Stream& stream) {
  if (path.empty()) return path;
  absl::StatusOr<std::optional<int64_t>> newest = StepIn(path, base);
  if (world.rank() == 0 && !newest->has_value()) newest = NewestStep(path);
  CONVENE_RETURN_IF_ERROR(Agree(newest.status(), "open the weights to begin with", world, stream));
  auto step = static_cast<double>(newest->value_or(-1));
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(&step, 1), ReduceOp::kMax, stream));
  return step < 0 ? path : StepDirectory(path, static_cast<int64_t>(step));
}

absl::StatusOr<Source> OpenFirst(const TrainOptions& options, const std::string& path) {
  absl::StatusOr<Weights> opened = OpenWeights(path);
  if (absl::IsNotFound(opened.status()) && path != options.init_from) {
    return absl::NotFoundError(absl::StrCat(
        "the run began with ", path,
        ", the newest checkpoint in --init-from at that time: ", opened.status().message(),
        ". Bring it back, or let --init-from name the one to go on beside"));
  }
  CONVENE_ASSIGN_OR_RETURN(Weights weights, std::move(opened));
  ModelConfig model = options.model;
  model.adapter = {};
  if (WeightsShapeText(weights.config) == WeightsShapeText(model)) {
    return std::move(weights.source);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--init-from ", options.init_from, " holds a model of shape ",
                   weights.source->info().model, ", and this run's is ", ShapeText(model),
                   ": leave out --model, and the flags that change the shape"));
}

absl::StatusOr<Source> OpenFirstAdapter(const TrainOptions& options, const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(Adapter adapter, OpenAdapter(path));
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
  return engine.LoadWeights(set, **source, tell, [&](const absl::Status& read) {
    return Agree(read, "read the weights to begin with", world, stream);
  });
}

}  // namespace

absl::StatusOr<FirstWeights> FindFirstWeights(const TrainOptions& options, Collective& world,
                                              Stream& stream) {
  FirstWeights first;
  const std::string base = world.rank() == 0 ? BaseOfChosen(options) : "";
  CONVENE_ASSIGN_OR_RETURN(first.weights, Settle(options.init_from, base, world, stream));
  const bool stays_beside_them = options.model.adapter.is_on() || options.preference_beta > 0;
  if (world.rank() == 0 && stays_beside_them && first.weights != options.init_from) {
    WarnOfWriter(options, first.weights);
  }
  CONVENE_ASSIGN_OR_RETURN(first.adapter, Settle(options.init_adapter, "", world, stream));
  // The nodes' folders may differ in it, and all ranks must tell one.
  double longest_text = options.longest_text;
  CONVENE_RETURN_IF_ERROR(
      world.AllReduce(absl::MakeSpan(&longest_text, 1), ReduceOp::kMax, stream));
  first.longest_text = static_cast<int>(longest_text);
  return first;
}

absl::Status MakeFirstWeights(const TrainOptions& options, const FirstWeights& first, bool resumed,
                              Engine& engine, absl::FunctionRef<void(double done)> tell,
                              Collective& world, Stream& stream) {
  const bool has_adapters = options.model.adapter.is_on();
  if (resumed && !has_adapters) return absl::OkStatus();
  const WeightSet of_model = has_adapters ? WeightSet::kFrozen : WeightSet::kAll;
  CONVENE_RETURN_IF_ERROR(first.weights.empty() ? engine.InitializeWeights(of_model, tell)
                                                : Load(of_model, OpenFirst(options, first.weights),
                                                       engine, tell, world, stream));
  if (resumed || !has_adapters) return absl::OkStatus();
  return first.adapter.empty()
             ? engine.InitializeWeights(WeightSet::kLearning, tell)
             : Load(WeightSet::kLearning, OpenFirstAdapter(options, first.adapter), engine, tell,
                    world, stream);
}

}  // namespace convene::worker
