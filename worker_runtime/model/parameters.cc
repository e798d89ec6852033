#include "worker_runtime/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

// Cuts the tensors of one rank.
class Cutter {
 public:
  Cutter(const ModelConfig& config, const ModelChunk& chunk, int tp_size, int tp_rank)
      : config_(config), chunk_(chunk), tp_size_(tp_size), tp_rank_(tp_rank) {}

  UnitSpec Embedding() const {
    return {.kind = UnitKind::kEmbedding, .tensors = {Table("model.embed_tokens.weight")}};
  }
  UnitSpec Block(int layer) const;
  UnitSpec Head() const;

 private:
  // Rows split over tp; `copies` neighbouring ranks have the same ones.
  ParameterSlice ColumnParallel(const std::string& name, int64_t rows, int64_t columns,
                                int copies = 1) const {
    const int64_t local = rows * copies / tp_size_;
    return {.name = name,
            .global_shape = {rows, columns},
            .offset = {local * (tp_rank_ / copies), 0},
            .extent = {local, columns},
            .owned = tp_rank_ % copies == 0,
            .tp_copies = copies,
            .standard_deviation = config_.initializer_range};
  }

  // Columns split over tp. Their outputs are summed into the residual stream twice per layer, so
  // they start smaller (Radford et al. 2019, GPT-2, section 2.3).
  UnitTensor RowParallel(const std::string& name, int64_t rows, int64_t columns) const {
    const int64_t local = columns / tp_size_;
    return {.slices = {{.name = name,
                        .global_shape = {rows, columns},
                        .offset = {0, local * tp_rank_},
                        .extent = {rows, local},
                        .standard_deviation =
                            config_.initializer_range / std::sqrt(2.0 * config_.layers)}}};
  }

  UnitTensor Norm(const std::string& name) const {
    return {.slices = {{.name = name,
                        .global_shape = {1, config_.hidden_size},
                        .offset = {0, 0},
                        .extent = {1, config_.hidden_size},
                        .decayed = false,
                        .owned = tp_rank_ == 0,
                        .initializer = Initializer::kOnes}},
            .same_on_tp = true};
  }

  // One row a token. A tied table is input and output of the model.
  UnitTensor Table(const std::string& name) const {
    return {.slices = {ColumnParallel(name, config_.vocabulary_size, config_.hidden_size)},
            .on_both_ends = config_.tied_embeddings && chunk_.ends_apart};
  }

  const ModelConfig& config_;
  const ModelChunk& chunk_;
  const int tp_size_;
  const int tp_rank_;
};

UnitSpec Cutter::Block(int layer) const {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t hidden = config_.hidden_size;
  const int64_t query = int64_t{config_.heads} * config_.head_size;
  const int64_t key = int64_t{config_.kv_heads} * config_.head_size;
  const int copies = std::max(1, tp_size_ / config_.kv_heads);
  return {.kind = UnitKind::kBlock,
          .tensors = {Norm(prefix + "input_layernorm.weight"),
                      {{ColumnParallel(prefix + "self_attn.q_proj.weight", query, hidden),
                        ColumnParallel(prefix + "self_attn.k_proj.weight", key, hidden, copies),
                        ColumnParallel(prefix + "self_attn.v_proj.weight", key, hidden, copies)}},
                      RowParallel(prefix + "self_attn.o_proj.weight", hidden, query),
                      Norm(prefix + "post_attention_layernorm.weight"),
                      {{ColumnParallel(prefix + "mlp.gate_proj.weight", config_.ffn_size, hidden),
                        ColumnParallel(prefix + "mlp.up_proj.weight", config_.ffn_size, hidden)}},
                      RowParallel(prefix + "mlp.down_proj.weight", hidden, config_.ffn_size)}};
}

UnitSpec Cutter::Head() const {
  UnitTensor table =
      Table(config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  table.slices.front().owned = !table.on_both_ends;
  return {.kind = UnitKind::kHead, .tensors = {Norm("model.norm.weight"), std::move(table)}};
}

}  // namespace

int64_t UnitTensor::count() const {
  int64_t count = 0;
  for (const ParameterSlice& slice : slices) count += slice.count();
  return count;
}

std::vector<ModelChunk> ChunksOf(const std::vector<int>& layers,
                                 const std::vector<int>& placement) {
  CONVENE_CHECK(layers.size() == placement.size());
  std::vector<ModelChunk> chunks;
  int first_layer = 0;
  for (const int count : layers) {
    chunks.push_back({.first_layer = first_layer,
                      .layers = count,
                      .ends_apart = placement.front() != placement.back()});
    first_layer += count;
  }
  chunks.front().has_embedding = true;
  chunks.back().has_head = true;
  return chunks;
}

std::vector<UnitSpec> UnitsOf(const ModelConfig& config, const ModelChunk& chunk, int tp_size,
                              int tp_rank) {
  CONVENE_CHECK(config.heads % tp_size == 0);
  const Cutter cutter(config, chunk, tp_size, tp_rank);
  std::vector<UnitSpec> units;
  if (chunk.has_embedding) units.push_back(cutter.Embedding());
  for (int i = 0; i < chunk.layers; ++i) {
    units.push_back(cutter.Block(chunk.first_layer + i));
    units.back().layer = chunk.first_layer + i;
  }
  if (chunk.has_head) units.push_back(cutter.Head());
  return units;
}

}  // namespace convene::worker
