// The keys of a run's first weights and adapters (init_from, lora_rank, ...) into the options.
#pragma once

#include "absl/status/status.h"
#include "proto/train_config.pb.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

// `said`: the keys that file and flags gave. Weights come with a shape, and often with a tokenizer;
// adapters come with a rank, an alpha and targets, and name the weights beside which they were
// trained: all of these become defaults, the last one of init_from. An empty init_from names none.
// The result is Weights::longest_text. Errors: OpenWeights's and OpenAdapter's, and that of
// Weights::tokenizer where `said` has no tokenizer, with the key.
absl::StatusOr<int> ApplyFirstWeights(TrainConfig* said, TrainConfig* defaults);

// TrainOptions::longest_text. `first`: that of the first weights. A run of short samples from
// nothing does not tell it: 0.
int ResolveLongestText(const TrainOptions& options, int first);

// Fills in options->init_from, init_adapter and model.adapter; options->model is resolved already.
// InvalidArgument: a rank below 0 or beyond all sizes, keys of adapters without a rank, adapters
// without weights to stand beside.
absl::Status ResolveFirstWeights(const TrainConfig& config, TrainOptions* options);

}  // namespace convene::worker
