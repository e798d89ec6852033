// PURE. Parameters and FLOPs of a model's parts on one rank, made once for each cut of the model.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"

namespace convene::worker {

// The matrices of a unit that Muon changes as wholes (ParameterSlice::is_matrix), in elements.
struct MatrixCount {
  double elements = 0;         // on this rank
  double in_first_bucket = 0;  // of these, in the store's first bucket (Placement)
  int64_t largest = 0;         // of one, before any cut
  int64_t shorter_side = 0;    // the longest of their shorter sides

  void Add(const UnitTensor& tensor);
};

// One unit of a tensor- and expert-parallel rank, in elements.
struct UnitCount {
  double parameters = 0;         // without experts' where ep is above 1
  double expert_parameters = 0;  // of the rank's experts, where ep is above 1
  double multiplied = 0;         // elements of matrices that each token is multiplied with
  double expert_multiplied = 0;  // the same of routed experts, of the whole tp slice
  double frozen = 0;             // of both, those that do not learn
  double in_first_bucket = 0;    // of `parameters`, as above
  MatrixCount matrices;          // without experts' where ep is above 1
  MatrixCount expert_matrices;   // of the rank's experts, where ep is above 1
  double tied = 0;  // of `parameters`: a table that the embedding and the head share on one rank
};

// One chunk of the model, on one pipeline rank.
struct ChunkCount {
  int dense = 0;  // blocks without experts
  int expert = 0;
  bool has_embedding = false;
  bool has_head = false;

  int layers() const { return dense + expert; }
  friend bool operator==(const ChunkCount&, const ChunkCount&) = default;
};

// Parameters of one rank, with a tied table counted once.
struct RankCount {
  double whole = 0;            // without experts' where ep is above 1
  double experts = 0;          // of the rank's experts, where ep is above 1
  double matrices = 0;         // of `whole`, those in matrices of blocks
  double expert_matrices = 0;  // of `experts`, likewise
  int layers = 0;
  int expert_layers = 0;
  bool has_embedding = false;
  bool has_head = false;
};

// The cut of a model over pipeline ranks.
struct StageCounts {
  // [pipeline rank][chunk of the rank]: CutLayers' own cut, by which the trainer goes. Empty: the
  // model has too few layers.
  std::vector<std::vector<ChunkCount>> ranks;
  // The first rank of each kind: all others hold as much as one of these.
  std::vector<int> distinct;
  std::vector<int> last;  // the last rank of each kind, in the same order
};

// Not thread-safe: it remembers what it has counted. Borrows the config.
class ModelCounts {
 public:
  explicit ModelCounts(const ModelConfig& config) : config_(config) {}

  struct Units {
    UnitCount embedding, dense, expert, head;
  };
  // The units of a rank. REQUIRES: ValidateModel says OK of tp and ep.
  const Units& Of(int tp, int ep);

  // A rank with these chunks.
  static RankCount Sum(const std::vector<ChunkCount>& chunks, const Units& units);

  const StageCounts& Stages(int pp, int virtual_stages);

 private:
  const ModelConfig& config_;
  std::map<std::pair<int, int>, Units> units_;
  std::map<std::pair<int, int>, StageCounts> stages_;
};

// FLOPs of one token, forward and backward, without recomputation. The first is 6 x the elements
// of the matrices that a token meets, 4 x of those that are frozen beside adapters; the second is
// attention's with all scores counted (12 x layers x heads x head size x sequence: PaLM, nanoGPT,
// torchtitan), the third with the scores below the diagonal alone (Megatron-LM since March 2025).
struct TokenFlops {
  double products = 0;
  double full_attention = 0;
  double causal_attention = 0;
};
TokenFlops FlopsOf(const ModelConfig& config, int64_t sequence_length, ModelCounts& counts);

// Of the products of a block's forward pass the part that the backward pass makes again.
double RecomputedShare(const ModelConfig& config, const Recompute& again);
// FLOPs of one token that are computed again, with all scores of attention. `flops` is FlopsOf's.
double RecomputedFlops(const ModelConfig& config, const Recompute& again, const TokenFlops& flops,
                       ModelCounts& counts);

// Scores of one query in the forward pass of a layer, on the mean: with the window of the layer and
// the diagonal.
double MeanKeys(const ModelConfig& config, int layer, int64_t sequence_length);

}  // namespace convene::worker
