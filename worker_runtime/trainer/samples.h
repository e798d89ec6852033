// The texts that the model makes of --sample-prompt between steps, as it stands.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
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
  // null), each of them. Logits that are no numbers are told, and end no training. Returns whether
  // to stop: after every few tokens the ranks ask each other over `world`, and where `stop_wanted`
  // is true on any of them, the texts end untold. Errors: the engine's, the reporter's, the
  // collective's.
  absl::StatusOr<bool> Run(int64_t step, Engine& engine, Reporter* reporter,
                           absl::FunctionRef<bool()> stop_wanted, Collective& world,
                           Stream& stream) const;

 private:
  const TrainOptions& options_;
  const Tokenizer& tokenizer_;
  const std::vector<int32_t> end_tokens_;
};

}  // namespace convene::worker
