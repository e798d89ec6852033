// A model that goes on with texts: the units that are trained, run forward over new tokens alone,
// with the keys and values of the earlier ones in a cache. All ranks of a layout make the same
// calls and get the same logits, whichever axes there are.
//
// A pass has a fixed number of tokens, so the model has a stage of each of a few numbers, up to the
// largest pass. The stages share weights and cache. The tokens of a pass are those of one text or
// of several, side by side: a prompt's, and the newest one of each text that goes on.
#pragma once

#include <cstdint>
#include <functional>
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
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/stage.h"
#include "worker_runtime/parallel/key_value_cache.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

// Tokens with which a sequence goes on.
struct NewTokens {
  int sequence = 0;  // of the cache
  int position = 0;  // so many tokens it has before them; what it had from there on is forgotten
  absl::Span<const int32_t> tokens;  // at least one
};

// Not thread-safe.
class LanguageModel {
 public:
  struct Options {
    ModelConfig config;
    Layout layout;
    DType dtype = DType::kFloat32;  // kFloat32 or kBFloat16
    int sequences = 1;              // as many at once
    int context = 0;                // the most tokens of one, prompt included
    int prompt_tokens = 256;        // the most tokens of a pass, unless there are more sequences
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // This rank's weights, in a store of somebody else's. Borrowed.
  struct Weights {
    const UnitsByChunk& units;
    const ChunkPlacement& placement;
    UnitStore& store;  // numbers the units in the order of the chunks
  };

  // Reads the weights. Borrows communicators and device. InvalidArgument: ValidateModel's,
  // CutLayers', or a context that is longer than a table of learned positions. Errors else: the
  // source's, and ResourceExhausted with the plan of memory.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Make(const Options& options,
                                                             const StateSource& weights,
                                                             const CommunicatorSet& communicators,
                                                             Device& device);

  // Declares all memory in `arena`, and Stage::Make's host memory in `staging`. Borrows all
  // references but `options`, and all that `weights` has but `units` and `placement`. REQUIRES: the
  // context is no longer than a table of learned positions.
  LanguageModel(const Options& options, const Weights& weights,
                const CommunicatorSet& communicators, Device& device, Arena& arena, Arena& staging);
  // Call it once both arenas are built.
  void Bind();

  const Options& options() const { return options_; }

  // All texts go on with their tokens, side by side: in as few passes as their tokens need. Returns
  // the logits behind the last token of each, one for each word of the vocabulary, in the same
  // order, until the next call. `goes_on`, where there is one, is asked before each pass. Errors:
  // the collectives', the device's, and those of `goes_on`. REQUIRES: no two are of one sequence,
  // and the context has room for all tokens.
  absl::StatusOr<absl::Span<float>> Extend(absl::Span<const NewTokens> texts,
                                           const std::function<absl::Status()>& goes_on = nullptr);

  // One text from its beginning: `see` gets the number of each token and the logits behind it. In
  // shorter pieces, whose logits may differ in their last bits from Extend's.
  absl::Status ExtendSeeingAll(int sequence, absl::Span<const int32_t> tokens,
                               absl::FunctionRef<void(size_t, absl::Span<float>)> see,
                               const std::function<absl::Status()>& goes_on = nullptr);

 private:
  // Weights of its own.
  struct Own {
    Own(const Options& options, UnitsByChunk rank_units, Device& device);

    Arena arena, staging;
    const UnitsByChunk units;
    const ChunkPlacement placement;
    WeightStore store;
  };
  // Passes of so many tokens.
  struct Shape {
    int tokens = 0;
    std::unique_ptr<Stage> stage;
    PipelineExecutor executor;
  };

  void AddShape(int tokens, const Weights& weights, const RankPlan& plan, Arena& arena,
                Arena& staging);
  // A pass over the first `tokens` of host_tokens_, where `goes_on` is null or OK. Returns its
  // shape.
  absl::StatusOr<const Shape*> Run(int tokens, std::vector<CachedRun> runs,
                                   const std::function<absl::Status()>& goes_on);
  // The logits of so many tokens of the last pass, to `to` on every rank.
  absl::Status FetchLogits(const Shape& shape, int tokens, float* to);
  // Queues the way of all tensor-parallel ranks' logits to host_logits_.
  absl::Status GatherLogits(const Shape& shape, int tokens);
  void SpreadLogits(int tokens, float* to) const;
  int largest_pass() const { return shapes_.front().tokens; }
  bool has_head() const { return communicators_.pp->rank() == head_stage_; }

  std::unique_ptr<Own> own_;  // null: the weights are somebody else's
  const Options options_;
  const CommunicatorSet& communicators_;
  const CommunicatorSet alone_;  // context-parallel ranks have the same tokens, each for itself
  Device& device_;
  const int head_stage_;  // the pipeline rank that has the head
  KeyValueCache cache_;
  std::vector<Shape> shapes_;   // falling numbers of tokens
  ArenaBlock<char> workspace_;  // of all shapes
  ArenaBlock<int32_t> tokens_;
  ArenaBlock<double> losses_;
  ArenaBlock<char> gathered_;  // (tp, tokens, vocabulary slice)
  Stream host_stream_ = Stream::Cpu();
  // Made by Bind.
  std::vector<int32_t> host_tokens_;
  std::vector<char> host_logits_;
  std::vector<float> logits_;
};

}  // namespace convene::worker
