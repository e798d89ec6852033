#include "worker_runtime/model/parameters.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

// Lays the groups out in order.
class TableBuilder {
 public:
  // `opens_bucket`: whether a group begins a bucket, by its number; absent: it does not. The first
  // one always does.
  TableBuilder(const ModelConfig& config, const Layout& layout, const Coordinate& coordinate,
               std::vector<bool> opens_bucket)
      : config_(config),
        layout_(layout),
        coordinate_(coordinate),
        opens_bucket_(std::move(opens_bucket)) {}

  // Call it once.
  ParameterTable Build();
  // After Build(): where the groups begin, and where the last group ends.
  const std::vector<int64_t>& group_borders() const { return group_borders_; }

 private:
  void BeginGroup() {
    const size_t group = group_borders_.size();
    if (group == 0 || (group < opens_bucket_.size() && opens_bucket_[group])) {
      next_ = RoundUp(next_, kParameterAlignment * layout_.dp);
      if (group > 0) table_.buckets.back().count = next_ - table_.buckets.back().begin;
      table_.buckets.push_back({.begin = next_});
    }
    group_borders_.push_back(next_);
  }

  // Rows split over tp.
  int64_t AddColumnParallel(const std::string& name, int64_t rows, int64_t columns, bool aligned) {
    const int64_t local = rows / layout_.tp;
    return Add({.name = name,
                .global_shape = {rows, columns},
                .offset = {local * coordinate_.tp, 0},
                .extent = {local, columns},
                .standard_deviation = config_.initializer_range},
               aligned);
  }

  // Columns split over tp. Their outputs are summed into the residual stream twice per layer, so
  // they start smaller (Radford et al. 2019, GPT-2, section 2.3).
  int64_t AddRowParallel(const std::string& name, int64_t rows, int64_t columns) {
    const int64_t local = columns / layout_.tp;
    return Add({.name = name,
                .global_shape = {rows, columns},
                .offset = {0, local * coordinate_.tp},
                .extent = {rows, local},
                .standard_deviation = config_.initializer_range / std::sqrt(2.0 * config_.layers)},
               true);
  }

  int64_t AddNorm(const std::string& name) {
    return Add({.name = name,
                .global_shape = {1, config_.hidden_size},
                .offset = {0, 0},
                .extent = {1, config_.hidden_size},
                .decayed = false,
                .owned = coordinate_.tp == 0,
                .initializer = Initializer::kOnes},
               true);
  }

  // Slices that a fused product reads as one matrix are added without a gap.
  int64_t Add(ParameterSlice slice, bool aligned) {
    if (aligned) next_ = RoundUp(next_, kParameterAlignment);
    slice.flat_offset = next_;
    next_ += slice.count();
    table_.slices.push_back(std::move(slice));
    return table_.slices.back().flat_offset;
  }
  void AddNorms(bool last);
  void AddMatrices(int layer, BlockParameters& block);

  const ModelConfig& config_;
  const Layout& layout_;
  const Coordinate& coordinate_;
  const std::vector<bool> opens_bucket_;
  ParameterTable table_;
  std::vector<int64_t> group_borders_;
  int64_t next_ = 0;
};

std::string LayerPrefix(int layer) { return absl::StrCat("model.layers.", layer, "."); }

void TableBuilder::AddNorms(bool last) {
  const int layers = config_.layers / layout_.pp;
  for (int layer = table_.first_layer; layer < table_.first_layer + layers; ++layer) {
    const std::string prefix = LayerPrefix(layer);
    BlockParameters& block = table_.blocks.emplace_back();
    block.attention_norm = AddNorm(prefix + "input_layernorm.weight");
    block.mlp_norm = AddNorm(prefix + "post_attention_layernorm.weight");
  }
  if (last) table_.final_norm = AddNorm("model.norm.weight");
  table_.norms_end = next_;
}

void TableBuilder::AddMatrices(int layer, BlockParameters& block) {
  const std::string prefix = LayerPrefix(layer);
  const int64_t hidden = config_.hidden_size;
  const int64_t query = int64_t{config_.heads} * config_.head_size;
  const int64_t key = int64_t{config_.kv_heads} * config_.head_size;
  BeginGroup();
  block.qkv = AddColumnParallel(prefix + "self_attn.q_proj.weight", query, hidden, true);
  AddColumnParallel(prefix + "self_attn.k_proj.weight", key, hidden, false);
  AddColumnParallel(prefix + "self_attn.v_proj.weight", key, hidden, false);
  block.attention_out = AddRowParallel(prefix + "self_attn.o_proj.weight", hidden, query);
  block.gate_up =
      AddColumnParallel(prefix + "mlp.gate_proj.weight", config_.ffn_size, hidden, true);
  AddColumnParallel(prefix + "mlp.up_proj.weight", config_.ffn_size, hidden, false);
  block.down = AddRowParallel(prefix + "mlp.down_proj.weight", hidden, config_.ffn_size);
}

ParameterTable TableBuilder::Build() {
  const bool first = coordinate_.pp == 0;
  const bool last = coordinate_.pp == layout_.pp - 1;
  table_.first_layer = config_.layers / layout_.pp * coordinate_.pp;
  BeginGroup();
  AddNorms(last);
  if (first) {
    table_.embedding = AddColumnParallel("model.embed_tokens.weight", config_.vocabulary_size,
                                         config_.hidden_size, true);
  }
  for (size_t i = 0; i < table_.blocks.size(); ++i) {
    AddMatrices(table_.first_layer + static_cast<int>(i), table_.blocks[i]);
  }
  if (last && first && config_.tied_embeddings) {
    table_.head = table_.embedding;
  } else if (last) {
    BeginGroup();
    if (config_.tied_embeddings) {
      table_.head = AddColumnParallel("model.embed_tokens.weight", config_.vocabulary_size,
                                      config_.hidden_size, true);
      table_.slices.back().owned = false;
    } else {
      table_.head =
          AddColumnParallel("lm_head.weight", config_.vocabulary_size, config_.hidden_size, true);
    }
  }
  group_borders_.push_back(next_);
  table_.flat_count = RoundUp(next_, kParameterAlignment * layout_.dp);
  table_.buckets.back().count = table_.flat_count - table_.buckets.back().begin;
  return std::move(table_);
}

// Tells which groups begin a bucket. Buckets are cut from the end, as the backward pass goes. The
// first bucket gets the rest, which may be small: nothing runs beside the reduction of the last
// gradients, nor beside the gather of the first parameters.
std::vector<bool> CutIntoBuckets(const std::vector<int64_t>& group_borders, int64_t count_min) {
  std::vector<bool> opens_bucket(group_borders.size() - 1);
  int64_t end = group_borders.back();
  for (size_t group = opens_bucket.size(); group-- > 0;) {
    if (end - group_borders[group] < count_min) continue;
    opens_bucket[group] = true;
    end = group_borders[group];
  }
  return opens_bucket;
}

}  // namespace

ParameterTable BuildParameterTable(const ModelConfig& config, const Layout& layout,
                                   const Coordinate& coordinate, int64_t bucket_count_min) {
  CONVENE_CHECK(config.layers % layout.pp == 0 && config.heads % layout.tp == 0);
  TableBuilder one_bucket(config, layout, coordinate, {});
  ParameterTable table = one_bucket.Build();
  // There is one bucket where there is nothing to reduce, and on every stage but the first, as in
  // Megatron: such a stage reduces while the stages before it still run their last backward pass,
  // and has a stage's forward pass longer to gather. Collectives beside its own last backward pass
  // would slow that pass down, and all stages before it wait for the result.
  if (layout.dp == 1 || coordinate.pp > 0) return table;
  if (bucket_count_min == 0) bucket_count_min = DefaultBucketCount(layout.dp);
  return TableBuilder(config, layout, coordinate,
                      CutIntoBuckets(one_bucket.group_borders(), bucket_count_min))
      .Build();
}

}  // namespace convene::worker
