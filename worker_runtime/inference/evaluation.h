// Numbers that say what a model has learned.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/inference/questions.h"
#include "worker_runtime/inference/scorer.h"

namespace convene::worker {

// Over texts that are scored one after another.
struct TextScore {
  int64_t tokens = 0;  // that were scored
  int64_t bytes = 0;   // that these stand for; 0: not known
  double loss = 0;     // their sum, in nats

  double mean() const { return tokens > 0 ? loss / static_cast<double>(tokens) : 0; }
  double perplexity() const;
  double bits_per_byte() const;  // 0: bytes are not known
};

// Adds a text's tokens but the first one, each scored once: in windows side by side, whose tokens
// see those of their own window alone. counted: of each token, 0: it is not scored; empty: all are.
// token_bytes: of each token of the vocabulary; empty: not known. DataLoss: the loss is no number.
// Errors else: the scorer's.
absl::Status ScoreText(Scorer& scorer, absl::Span<const int32_t> tokens,
                       absl::Span<const uint8_t> counted, absl::Span<const uint16_t> token_bytes,
                       TextScore* score);

struct ChoiceScore {
  int questions = 0;
  int by_sum = 0;   // right where the ending of the least loss is chosen (llm.c's acc)
  int by_mean = 0;  // the same of the least loss a token (acc_norm)
};

// InvalidArgument: a question that is longer than the scorer's window, or has tokens that the model
// lacks. DataLoss: a loss is no number. Errors else: the scorer's.
absl::StatusOr<ChoiceScore> ScoreChoices(Scorer& scorer, absl::Span<const Question> questions,
                                         int vocabulary_size);

}  // namespace convene::worker
