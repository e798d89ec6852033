// Goes on with many prompts: as many at once as the model has sequences, and the next prompt begins
// as soon as one ends, in the same passes as the texts that go on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/inference/language_model.h"
#include "worker_runtime/inference/sampler.h"

namespace convene::worker {

struct GenerateOptions {
  SamplingOptions sampling;
  int max_new_tokens = 0;
  std::vector<int32_t> end_tokens;  // each of them ends a sequence, as its last token
  uint64_t first_sequence = 0;      // the first prompt's number, for SamplingNumber
  // Where there is one: sees each new token and the logits that it was chosen from, before the
  // sink does; with `sees_prompts` the prompts' tokens too, a first one with no logits. With
  // max_new_tokens 0 nothing else is done.
  std::function<void(int prompt, int32_t token, absl::Span<const float> logits)> see_logits;
  bool sees_prompts = false;
  // Where there is one: asked before each pass of the model. Not OK: nobody wants the rest, and
  // Generate's error. On several ranks it has to say the same on all.
  std::function<absl::Status()> goes_on;
};

// Why a sequence has ended.
enum class SequenceEnd { kNotYet, kEndToken, kLength, kStopped };

// A token that a prompt has got. Returns false where the sequence is to stop; `end` is then
// kNotYet, and no token of it comes any more.
using TokenSink =
    absl::FunctionRef<absl::StatusOr<bool>(int prompt, int32_t token, SequenceEnd end)>;

// `sink` is called for each token, in the order of a sequence's tokens. Tokens are a function of
// the prompt, its number and the options, as far as the model's logits are. A sequence that fills
// the context ends with kLength.
//
// InvalidArgument: a prompt has no token, one that the model does not have, or no room in the
// context for it and a new one. DataLoss: the logits are no numbers. Errors else: the model's,
// the sink's, and those of goes_on.
absl::Status Generate(LanguageModel& model, absl::Span<const std::vector<int32_t>> prompts,
                      const GenerateOptions& options, TokenSink sink);

}  // namespace convene::worker
