#include "worker_runtime/trainer/validation.h"

#include <algorithm>
#include <numbers>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/dataset.h"

namespace convene::worker {

BatchLoader::Options LoaderOptionsOf(const TrainOptions& options, const Layout& layout, int rank) {
  return {.seed = options.seed,
          .cut = CutOf(options, layout),
          .dp_rank = CoordinateOf(layout, rank).dp,
          .packed_documents = options.packed_documents,
          .end_of_document = static_cast<int32_t>(options.eod_token.value_or(0))};
}

Validation::Validation(const TrainOptions& options, const Layout& layout, int rank,
                       const RunData& data)
    : global_batch_size_(options.global_batch_size), has_pairs_(options.preference_beta > 0) {
  const auto add = [&](const std::optional<std::string>& name, const Dataset& dataset) {
    const int64_t samples = std::min(options.validation_samples, dataset.validation_samples());
    if (samples == 0) return;
    sets_.push_back({.name = name,
                     .loader = BatchLoader(dataset, LoaderOptionsOf(options, layout, rank)),
                     .samples = samples,
                     .bytes = std::nullopt});
  };
  add(std::nullopt, data.training);
  for (const auto& [name, dataset] : data.validation_sets) add(name, dataset);
}

void Validation::SetReferences(absl::Span<const double> references) {
  for (Set& set : sets_) set.loader.SetReferences(references);
}

bool Validation::IsTold(int64_t step, const Reporter& reporter) const {
  return absl::c_all_of(sets_,
                        [&](const Set& set) { return reporter.HasValidation(step, set.name); });
}

absl::StatusOr<bool> Validation::Run(int64_t step, Engine& engine, Reporter* reporter) {
  for (Set& set : sets_) {
    CONVENE_ASSIGN_OR_RETURN(const bool stops, RunOn(set, step, engine, reporter));
    if (stops) return true;
  }
  return false;
}

absl::StatusOr<bool> Validation::RunOn(Set& set, int64_t step, Engine& engine, Reporter* reporter) {
  ForwardResult sum;
  int64_t counted_targets = 0;
  for (int64_t first = 0; first < set.samples; first += global_batch_size_) {
    CONVENE_ASSIGN_OR_RETURN(const TokenBatch batch, set.loader.Validation(first, set.samples));
    CONVENE_ASSIGN_OR_RETURN(
        const ForwardResult result,
        engine.ForwardLoss(batch, static_cast<int>(set.loader.microbatches())));
    if (result.stop_requested) return true;
    sum.loss += result.loss;
    sum.rewards.right += result.rewards.right;
    sum.rewards.margins += result.rewards.margins;
    counted_targets += batch.counted_targets;
  }
  if (reporter == nullptr) return false;
  CONVENE_RETURN_IF_ERROR(Report(set, step, sum, counted_targets, *reporter));
  return false;
}

// `sum`: over `counted_targets`.
absl::Status Validation::Report(Set& set, int64_t step, const ForwardResult& sum,
                                int64_t counted_targets, Reporter& reporter) {
  if (counted_targets == 0) {
    reporter.Say(absl::StrCat(
        "no validation loss ", set.name.has_value() ? absl::StrCat("of ", *set.name, " ") : "",
        "after step ", step, ": no target of the ", set.samples, " held-out samples counts"));
    return absl::OkStatus();
  }
  // Counted once: it is the same text each time.
  if (!set.bytes.has_value()) set.bytes = set.loader.ValidationTargetBytes(set.samples).value_or(0);
  const auto count = static_cast<double>(counted_targets);
  ValidationMetrics metrics = {
      .step = step, .validation_set = set.name, .validation_loss = sum.loss / count};
  if (*set.bytes > 0) {
    metrics.bits_per_byte = sum.loss / std::numbers::ln2 / static_cast<double>(*set.bytes);
  }
  if (has_pairs_) {
    metrics.reward_accuracy = sum.rewards.right / count;
    metrics.reward_margin = sum.rewards.margins / count;
  }
  return reporter.Validation(metrics);
}

}  // namespace convene::worker
