// A model that goes on with texts: the units that are trained, run forward over new tokens alone,
// with the keys and values of the earlier ones in a cache. One rank, or tensor-parallel ranks that
// all make the same calls and get the same logits.
//
// A pass has a fixed shape (rows, tokens a row), so the model has a stage of each of a few shapes:
// one row of some lengths for a prompt, and rows of one token, as many as powers of two. They share
// weights and cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/inference/weight_store.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/parallel/key_value_cache.h"

namespace convene::worker {

// The token that a sequence goes on with.
struct NextToken {
  int sequence = 0;  // of the cache
  int position = 0;  // so many tokens it has before this one
  int32_t token = 0;
};

// Not thread-safe.
class LanguageModel {
 public:
  struct Options {
    ModelConfig config;
    DType dtype = DType::kFloat32;  // kFloat32 or kBFloat16
    int sequences = 1;              // as many at once
    int context = 0;                // the most tokens of one, prompt included
    int prompt_tokens = 256;        // the most tokens of a prompt that one pass takes; at least 2
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // Reads the weights. Borrows communicators and device. InvalidArgument: ValidateModel's, or a
  // context that is longer than a table of learned positions. Errors else: the source's, and
  // ResourceExhausted with the plan of memory.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Make(const Options& options,
                                                             const StateSource& weights,
                                                             const CommunicatorSet& communicators,
                                                             Device& device);

  const Options& options() const { return options_; }
  size_t memory_bytes() const { return arena_.total_bytes(); }

  // The sequence's tokens from `position` on; whatever it had there is forgotten. Returns the
  // logits behind the last of them, one for each word of the vocabulary, until the next call.
  // Errors: the collective's and the device's. REQUIRES: at least one token, and room for all.
  absl::StatusOr<absl::Span<float>> Prefill(int sequence, int position,
                                            absl::Span<const int32_t> tokens);

  // The same from the sequence's beginning: `see` gets the number of each token and the logits
  // behind it. In shorter pieces, whose logits may differ in their last bits from Prefill's.
  absl::Status PrefillAll(int sequence, absl::Span<const int32_t> tokens,
                          absl::FunctionRef<void(size_t, absl::Span<float>)> see);

  // One token of each of some sequences. Returns the logits behind them, in the same order.
  // REQUIRES: no two are of one sequence, and at most Options::sequences.
  absl::StatusOr<absl::Span<float>> Decode(absl::Span<const NextToken> next);

 private:
  struct Shape {
    int rows = 0;
    int length = 0;
    std::unique_ptr<Stage> stage;
  };

  LanguageModel(const Options& options, const CommunicatorSet& communicators, Device& device);
  void AddShape(int rows, int length);
  // The smallest of at most `longest` tokens that has room for `tokens`, else the largest.
  const Shape& PromptShape(size_t tokens, int longest) const;
  // The first of them as a pass of the shape. Returns how many.
  absl::StatusOr<int> RunPrompt(const Shape& shape, int sequence, int position,
                                absl::Span<const int32_t> tokens, bool wants_all_logits);
  // Over host_tokens_, laid out as the shape says.
  absl::Status Run(const Shape& shape, std::vector<CachedRow> rows);
  absl::StatusOr<absl::Span<float>> Logits(const Shape& shape, int rows);

  const Options options_;
  const CommunicatorSet& communicators_;
  Device& device_;
  Arena arena_;
  const std::vector<UnitSpec> units_;
  WeightStore store_;
  KeyValueCache cache_;
  std::vector<Shape> prompts_;  // one row each; rising lengths
  std::vector<Shape> steps_;    // one token a row; rising numbers of rows
  ArenaBlock<int32_t> tokens_;
  ArenaBlock<double> losses_;
  ArenaBlock<char> gathered_;  // (tp, rows, vocabulary slice)
  std::vector<int32_t> host_tokens_;
  std::vector<char> host_logits_;
  std::vector<float> logits_;
};

}  // namespace convene::worker
