#include "worker_runtime/options/load_first_weights.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {
namespace {

// A model's hidden size is the bound that ValidateAdapters names; this one is for the number's
// type.
constexpr int64_t kRankMax = 1 << 20;

absl::StatusOr<int> ApplyInitFrom(const TrainConfig& said, TrainConfig* defaults) {
  if (said.init_from().empty()) return 0;
  const absl::StatusOr<Weights> weights = OpenWeights(said.init_from());
  if (!weights.ok()) return Annotate(weights.status(), "init_from");
  defaults->set_model(said.init_from());
  if (said.has_tokenizer()) return weights->longest_text;
  const absl::StatusOr<std::string>& tokenizer = weights->tokenizer;
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), "init_from");
  if (!tokenizer->empty()) defaults->set_tokenizer(*tokenizer);
  return weights->longest_text;
}

absl::Status ApplyInitAdapter(TrainConfig* said, TrainConfig* defaults) {
  if (said->init_adapter().empty()) return absl::OkStatus();
  const absl::StatusOr<Adapter> adapter = OpenAdapter(said->init_adapter());
  if (!adapter.ok()) return Annotate(adapter.status(), "init_adapter");
  defaults->set_lora_rank(adapter->config.rank);
  defaults->set_lora_alpha(adapter->config.alpha);
  defaults->set_lora_rank_stabilized(adapter->config.rank_stabilized);
  defaults->set_lora_dropout(adapter->config.dropout);
  for (const std::string& target : adapter->config.targets) defaults->add_lora_targets(target);
  if (said->init_from().empty() && !adapter->base.empty()) said->set_init_from(adapter->base);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> ApplyFirstWeights(TrainConfig* said, TrainConfig* defaults) {
  CONVENE_RETURN_IF_ERROR(ApplyInitAdapter(said, defaults));
  return ApplyInitFrom(*said, defaults);
}

int ResolveLongestText(const TrainOptions& options, int first) {
  if (options.model.family->learned_positions) return 0;
  const int samples = static_cast<int>(options.sequence_length);
  if (first > 0) return std::max(first, samples);
  return samples > GuessedLongestText(options.model) ? samples : 0;
}

absl::Status ResolveFirstWeights(const TrainConfig& config, TrainOptions* options) {
  options->init_from = config.init_from();
  const int64_t rank = config.lora_rank();
  if (rank == 0) {
    const std::pair<const char*, bool> keys[] = {
        {"lora_alpha", config.has_lora_alpha()},
        {"lora_targets", config.lora_targets_size() > 0},
        {"lora_rank_stabilized", config.lora_rank_stabilized()},
        {"lora_dropout", config.lora_dropout() != 0}};
    for (const auto& [key, is_said] : keys) {
      if (!is_said) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          key, " has no effect without adapters: give a lora_rank (8, say), or leave it out"));
    }
    return absl::OkStatus();
  }
  if (rank < 0 || rank > kRankMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("lora_rank ", rank,
                     " must be from 1 to the model's hidden_size, or 0 where "
                     "all weights are to learn"));
  }
  if (!(config.lora_dropout() >= 0 && config.lora_dropout() < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("lora_dropout ", config.lora_dropout(),
                                                   " must be from 0 to below 1 (0.05, say)"));
  }
  if (config.init_from().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lora_rank ", rank,
                     " trains adapters beside weights that stay as they are, and no weights "
                     "are named: give init_from (a folder, a file or a checkpoint)"));
  }
  // Checkpoints of adapters name it, and may be opened from elsewhere.
  const std::string absolute =
      std::filesystem::absolute(config.init_from()).lexically_normal().string();
  options->init_from = std::string(absl::StripSuffix(absolute, "/"));
  options->init_adapter = config.init_adapter();
  options->model.adapter = {
      .rank = static_cast<int>(rank),
      .alpha = config.has_lora_alpha() ? config.lora_alpha() : 2.0 * static_cast<double>(rank),
      .rank_stabilized = config.lora_rank_stabilized(),
      .dropout = config.lora_dropout(),
      .targets = {}};
  for (const std::string& text : config.lora_targets()) {
    for (const absl::string_view target : absl::StrSplit(text, ',', absl::SkipEmpty())) {
      options->model.adapter.targets.emplace_back(target);
    }
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
