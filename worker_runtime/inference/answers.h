// The texts with which a model goes on with prompts, piece by piece.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/inference/generator.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

enum class AnswerEnd { kNotYet, kEndToken, kStopText, kLength };
// "end_token", "stop_text" or "length". REQUIRES: not kNotYet.
const char* NameOf(AnswerEnd end);

// Called for each token of an answer, in order, with the text that may be shown since the last
// call, perhaps none. Not OK: no more is wanted.
using ShowAnswer =
    absl::FunctionRef<absl::Status(int prompt, const std::string& text, AnswerEnd end)>;

// `stop_texts`: as TextStream has them. Errors: Generate's, and those of `show`.
absl::Status Answer(LanguageModel& model, const Tokenizer& tokenizer,
                    absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                    const std::vector<std::string>& stop_texts, ShowAnswer show);

}  // namespace convene::worker
