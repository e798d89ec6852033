// The texts that the model makes of --sample-prompt between steps, as it stands.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/tokenizer/tokenizer.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/reporter.h"

namespace convene::worker {

// Not thread-safe.
class Samples {
 public:
  // Borrows both. The options are those of LoadRunTokenizer.
  Samples(const TrainOptions& options, const Tokenizer& tokenizer);

  // All ranks call it, and make the same texts. Tells `reporter`, which rank 0 alone has (else
  // null), each of them. Logits that are no numbers are told, and end no training. Errors: the
  // engine's, the reporter's.
  absl::Status Run(int64_t step, Engine& engine, Reporter* reporter) const;

 private:
  const TrainOptions& options_;
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> end_tokens_;
};

}  // namespace convene::worker
