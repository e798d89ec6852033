#include "worker_runtime/trainer/testing/training_run.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/documents.h"
#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/trainer/testing/copy_parameters.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker::testing {
namespace {

constexpr double kTolerance = 1e-5;
constexpr double kZeroLevel = 1e-3;  // of an element; weights begin at some tenths

// One data-parallel rank's part of a step.
struct Tokens {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
  std::vector<int32_t> document_begin;
  std::vector<int64_t> samples;
  int64_t counted = 0;  // targets of the whole global batch
  int microbatches = 0;

  TokenBatch Batch(bool packed) const {
    return {.inputs = inputs.data(),
            .targets = targets.data(),
            .counted_targets = counted,
            .document_begin = packed ? document_begin.data() : nullptr,
            .microbatches = microbatches,
            .samples = samples.data()};
  }
};

Tokens TokensOfStep(const TrainingRun& run, int dp_rank, int step) {
  const int length = run.engine.sequence_length;
  BatchRamp ramp = run.ramp;
  ramp.full = run.cut.global_batch_size;
  const int64_t first = SamplesAfter(ramp, step);
  BatchCut cut = run.cut;
  cut.global_batch_size = BatchAt(ramp, first);
  Tokens tokens;
  tokens.microbatches = static_cast<int>(MicrobatchCount(cut));
  for (int64_t i = 0; i < cut.global_batch_size; ++i) {
    const std::vector<int32_t> targets = run.sample(first + i).targets;
    tokens.counted += std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
  }
  const Sample padding = {std::vector<int32_t>(length, 0), std::vector<int32_t>(length, -1)};
  for (int64_t m = 0; m < tokens.microbatches; ++m) {
    for (int row = 0; row < cut.micro_batch_size; ++row) {
      const int64_t position = SamplePosition(first, cut, dp_rank, m, row);
      tokens.samples.push_back(position);
      const Sample sample = position == kNoSample ? padding : run.sample(position);
      tokens.inputs.insert(tokens.inputs.end(), sample.inputs.begin(), sample.inputs.end());
      tokens.targets.insert(tokens.targets.end(), sample.targets.begin(), sample.targets.end());
      tokens.document_begin.resize(tokens.inputs.size());
      FindDocuments(length, sample.inputs.data(), run.end_of_document,
                    tokens.document_begin.data() + tokens.inputs.size() - length);
    }
  }
  return tokens;
}

struct Rank {
  std::unique_ptr<Engine> engine;
  Curve curve;                   // without tensors
  std::vector<char> parameters;  // after the last step
};

absl::Status TrainRank(const TrainingRun& run, int rank, Place& place, Rank& here) {
  EngineOptions options = run.engine;
  options.rank = rank;
  options.collective_memory = place.collective_memory.get();
  options.deterministic = true;
  const int dp_rank = CoordinateOf(options.layout, rank).dp;
  CONVENE_ASSIGN_OR_RETURN(here.engine,
                           Engine::Create(options, place.communicators, *place.device));
  if (run.prepare != nullptr) CONVENE_RETURN_IF_ERROR(run.prepare(*here.engine));
  int64_t updates = 0;
  for (int step = 1; step <= run.steps; ++step) {
    const Tokens tokens = TokensOfStep(run, dp_rank, step - 1);
    UpdateParameters adam = run.adam(step);
    adam.step = updates + 1;
    const StepLimits limits = run.limits != nullptr ? run.limits(step) : StepLimits();
    CONVENE_ASSIGN_OR_RETURN(
        const StepResult result,
        TrainStep(*here.engine, tokens.Batch(options.packed_documents), adam, limits));
    if (!result.skipped) ++updates;
    here.curve.losses.push_back(result.loss);
    here.curve.grad_norms.push_back(result.grad_norm);
    here.curve.router_losses.push_back(result.router_losses[0] + result.router_losses[1]);
    if (run.between == nullptr) continue;
    CONVENE_RETURN_IF_ERROR(run.between(rank, step, *here.engine));
  }
  const Tokens tokens = TokensOfStep(run, dp_rank, run.steps);
  CONVENE_ASSIGN_OR_RETURN(
      const ForwardResult result,
      here.engine->ForwardLoss(tokens.Batch(options.packed_documents), tokens.microbatches));
  here.curve.validation_loss = result.loss / static_cast<double>(tokens.counted);
  CONVENE_ASSIGN_OR_RETURN(here.parameters, CopyParameters(*here.engine, *place.device));
  return absl::OkStatus();
}

// The tensors that the ranks' parts make up.
class Assembly {
 public:
  explicit Assembly(Curve& curve) : curve_(curve) {}

  void Add(const Rank& here, int rank) {
    const auto* all = reinterpret_cast<const float*>(here.parameters.data());
    for (const BucketStore* const store : here.engine->stores()) {
      for (const PlacedParameter& slice : store->placement().parameters) {
        if (!AddSlice(slice, all + slice.flat_offset)) {
          curve_.unequal.push_back(absl::StrCat(slice.name, " on rank ", rank));
        }
      }
      all += store->placement().flat_count;
    }
  }

 private:
  // Whether elements that another rank has added are the same bits.
  bool AddSlice(const ParameterSlice& slice, const float* values) {
    std::vector<float>& tensor = curve_.tensors[slice.name];
    std::vector<bool>& known = known_[slice.name];
    tensor.resize(slice.global_shape[0] * slice.global_shape[1]);
    known.resize(tensor.size());
    bool is_equal = true;
    for (int64_t i = 0; i < slice.count(); ++i) {
      const int64_t row = slice.offset[0] + i / slice.extent[1];
      const int64_t column = slice.offset[1] + i % slice.extent[1];
      const int64_t place = row * slice.global_shape[1] + column;
      is_equal = is_equal && (!known[place] || std::bit_cast<uint32_t>(tensor[place]) ==
                                                   std::bit_cast<uint32_t>(values[i]));
      tensor[place] = values[i];
      known[place] = true;
    }
    return is_equal;
  }

  Curve& curve_;
  std::map<std::string, std::vector<bool>> known_;
};

// The first rank that fails ends the others' waiting.
class FirstFailure {
 public:
  explicit FirstFailure(Places& places) : places_(places) {}

  void Add(const absl::Status& status) {
    MutexLock lock(&mutex_);
    if (status.ok() || !first_.ok()) return;
    first_ = status;
    for (int rank = 0; rank < places_.size(); ++rank) {
      places_[rank].communicators.AbortAll("another rank failed");
    }
  }
  absl::Status first() {
    MutexLock lock(&mutex_);
    return first_;
  }

 private:
  Places& places_;
  Mutex mutex_;
  absl::Status first_ ABSL_GUARDED_BY(mutex_);
};

bool IsNear(double value, double expected, double tolerance = kTolerance) {
  return std::abs(value - expected) <= tolerance * std::abs(expected);
}

}  // namespace

absl::StatusOr<Curve> Train(const TrainingRun& run) {
  const int world_size = run.engine.layout.world_size();
  CONVENE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Places> places,
      Places::Make(run.engine.layout, {.transport = run.transport,
                                       .timeout = run.timeout,
                                       .pp_links = LinksOf(run.engine.schedule.placement)}));
  std::vector<Rank> ranks(world_size);
  // They end at the same time, as they began.
  const auto ending = absl::MakeCleanup([&] {
    places->OnEveryRank([&](int rank) {
      ranks[rank].engine = nullptr;
      return absl::OkStatus();
    });
  });
  FirstFailure failure(*places);
  places->OnEveryRank([&](int rank) {
    failure.Add(TrainRank(run, rank, (*places)[rank], ranks[rank]));
    return absl::OkStatus();
  });
  CONVENE_RETURN_IF_ERROR(failure.first());
  Curve curve = ranks.front().curve;
  Assembly assembly(curve);
  for (int rank = 0; rank < world_size; ++rank) {
    const Rank& here = ranks[rank];
    if (here.curve.losses != curve.losses || here.curve.grad_norms != curve.grad_norms ||
        here.curve.router_losses != curve.router_losses ||
        here.curve.validation_loss != curve.validation_loss) {
      curve.unequal.push_back(absl::StrCat("results on rank ", rank));
    }
    curve.parameters.emplace_back(here.parameters.begin(), here.parameters.end());
    if (run.engine.dtype == DType::kFloat32) assembly.Add(here, rank);
  }
  return curve;
}

std::string CurveDifference(const Curve& curve, const Curve& expected) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    if (!IsNear(curve.losses[step], expected.losses[step])) {
      return absl::StrCat("step ", step + 1, ": loss ", curve.losses[step], ", expected ",
                          expected.losses[step]);
    }
    // They are made of squares.
    if (!IsNear(curve.router_losses[step], expected.router_losses[step], 2 * kTolerance)) {
      return absl::StrCat("step ", step + 1, ": losses of routers ", curve.router_losses[step],
                          ", expected ", expected.router_losses[step]);
    }
    if (!IsNear(curve.grad_norms[step], expected.grad_norms[step])) {
      return absl::StrCat("step ", step + 1, ": gradient norm ", curve.grad_norms[step],
                          ", expected ", expected.grad_norms[step]);
    }
  }
  if (IsNear(curve.validation_loss, expected.validation_loss)) return "";
  return absl::StrCat("validation loss ", curve.validation_loss, ", expected ",
                      expected.validation_loss);
}

std::string TensorDifference(const Curve& curve, const Curve& expected) {
  if (curve.tensors.size() != expected.tensors.size()) {
    return absl::StrCat(curve.tensors.size(), " tensors, expected ", expected.tensors.size());
  }
  for (const auto& [name, tensor] : expected.tensors) {
    const auto found = curve.tensors.find(name);
    if (found == curve.tensors.end() || found->second.size() != tensor.size()) {
      return absl::StrCat(name, " is missing or of another size");
    }
    double distance = 0;
    double length = 0;
    for (size_t i = 0; i < tensor.size(); ++i) {
      distance += std::pow(double{found->second[i]} - tensor[i], 2);
      length += std::pow(tensor[i], 2);
    }
    // A tensor that began as zeros, and whose gradient is zero but for rounding, is nothing but
    // rounding: keys where each query sees one token.
    const double least = kZeroLevel * std::sqrt(static_cast<double>(tensor.size()));
    if (std::sqrt(distance) <= kTolerance * std::max(std::sqrt(length), least)) continue;
    return absl::StrCat(name, " is ", std::sqrt(distance), " away, of ", std::sqrt(length));
  }
  return "";
}

}  // namespace convene::worker::testing
