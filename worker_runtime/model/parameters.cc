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
  Cutter(const ModelConfig& config, const ModelChunk& chunk, int tp_size, int tp_rank, int ep_size,
         int ep_rank)
      : config_(config),
        family_(*config.family),
        names_(config.family->names),
        chunk_(chunk),
        tp_size_(tp_size),
        tp_rank_(tp_rank),
        local_experts_(config.experts.count / ep_size),
        first_expert_(local_experts_ * ep_rank) {}

  UnitSpec Embedding() const;
  UnitSpec Block(int layer) const;
  UnitSpec Head() const;

 private:
  // Rows of a tensor that are split over tp; `copies` neighbouring ranks have the same ones.
  struct Rows {
    int64_t count = 0;
    int copies = 1;
    int64_t first = 0;  // in the tensor
    int64_t all = 0;    // of the tensor; 0: these
  };

  ParameterSlice ColumnParallel(const std::string& name, const Rows& rows, int64_t columns) const {
    const int64_t local = rows.count * rows.copies / tp_size_;
    return {.name = name + ".weight",
            .global_shape = {rows.all > 0 ? rows.all : rows.count, columns},
            .offset = {rows.first + local * (tp_rank_ / rows.copies), 0},
            .extent = {local, columns},
            .matrix_begin = rows.first,
            .matrix_rows = rows.count,
            .owned = tp_rank_ % rows.copies == 0,
            .tp_copies = rows.copies,
            .standard_deviation = config_.initializer_range};
  }

  // Columns split over tp. Their outputs are summed into the residual stream twice per layer, so
  // they start smaller (Radford et al. 2019, GPT-2, section 2.3).
  UnitTensor RowParallel(BlockTensor role, const std::string& name, int64_t rows,
                         int64_t columns) const {
    const int64_t local = columns / tp_size_;
    return {.slices = {{.name = name + ".weight",
                        .global_shape = {rows, columns},
                        .offset = {0, local * tp_rank_},
                        .extent = {rows, local},
                        .matrix_rows = rows,
                        .standard_deviation =
                            config_.initializer_range / std::sqrt(2.0 * config_.layers)}},
            .role = role};
  }

  // A vector that each tensor-parallel rank has whole.
  ParameterSlice Whole(const std::string& name, int64_t count, Initializer initializer) const {
    return {.name = name,
            .global_shape = {1, count},
            .offset = {0, 0},
            .extent = {1, count},
            .decayed = false,
            .owned = tp_rank_ == 0,
            .initializer = initializer};
  }

  // Where all ranks make the same gradient for it.
  UnitTensor Same(int role, const std::string& name, Initializer initializer) const {
    return {.slices = {Whole(name, config_.hidden_size, initializer)},
            .role = role,
            .same_on_tp = true};
  }

  // Each rank makes the gradient of its own heads.
  UnitTensor HeadNorm(BlockTensor role, const std::string& name, int size) const {
    ParameterSlice slice = Whole(name + ".weight", size, NormStart());
    slice.tp_copies = tp_size_;
    return {.slices = {std::move(slice)}, .role = role, .in_first_bucket = true};
  }

  Initializer NormStart() const {
    return WeightOffset(family_.norm) == 0 ? Initializer::kOnes : Initializer::kZeros;
  }

  // The norm's weight, and its bias where it has one.
  void AddNorm(int weight_role, int bias_role, const std::string& name, UnitSpec& unit) const {
    unit.tensors.push_back(Same(weight_role, name + ".weight", NormStart()));
    if (family_.norm == NormKind::kLayer) {
      unit.tensors.push_back(Same(bias_role, name + ".bias", Initializer::kZeros));
    }
  }

  static ParameterSlice BiasOfRows(const ParameterSlice& slice) {
    ParameterSlice bias = slice;
    bias.name.replace(bias.name.rfind('.'), std::string::npos, ".bias");
    bias.global_shape = {1, slice.global_shape[0]};
    bias.offset = {0, slice.offset[0]};
    bias.extent = {1, slice.extent[0]};
    bias.matrix_rows = 0;
    bias.decayed = false;
    bias.initializer = Initializer::kZeros;
    return bias;
  }

  // A column-parallel layer, with the biases of its rows.
  static void AddSplit(BlockTensor role, BlockTensor bias_role, bool has_bias,
                       std::vector<ParameterSlice> slices, UnitSpec& unit) {
    UnitTensor bias = {.role = bias_role};
    for (const ParameterSlice& slice : slices) bias.slices.push_back(BiasOfRows(slice));
    unit.tensors.push_back({.slices = std::move(slices), .role = role});
    if (has_bias) unit.tensors.push_back(std::move(bias));
  }

  void AddMixer(const std::string& layer, UnitSpec& unit) const;
  void AddLatentMixer(const std::string& layer, UnitSpec& unit) const;
  void AddFeedForward(const std::string& layer, UnitSpec& unit) const;
  void AddExperts(const std::string& layer, UnitSpec& unit) const;
  // Gate and up rows of a network whose names begin with `prefix`; `gate`: null without a gate.
  std::vector<ParameterSlice> GateUp(const std::string& prefix, const char* gate, const char* up,
                                     int64_t ffn) const;

  ParameterSlice TableSlice(const char* name, int64_t rows) const {
    ParameterSlice slice = ColumnParallel(name, {rows}, config_.hidden_size);
    slice.matrix_rows = 0;  // of no block
    return slice;
  }

  // One row a token. A tied table is input and output of the model.
  UnitTensor Table(int role, const char* name) const {
    return {.slices = {TableSlice(name, config_.vocabulary_size)},
            .role = role,
            .on_both_ends = config_.tied_embeddings && chunk_.ends_apart};
  }

  const ModelConfig& config_;
  const Family& family_;
  const TensorNames& names_;
  const ModelChunk& chunk_;
  const int tp_size_;
  const int tp_rank_;
  const int local_experts_;
  const int first_expert_;
};

UnitSpec Cutter::Embedding() const {
  UnitSpec unit = {.kind = UnitKind::kEmbedding,
                   .tensors = {Table(kEmbeddingTable, names_.embedding)}};
  if (family_.learned_positions) {
    unit.tensors.push_back({.slices = {TableSlice(names_.positions, config_.positions)},
                            .role = kPositionTable,
                            .in_first_bucket = true});
  }
  return unit;
}

void Cutter::AddMixer(const std::string& layer, UnitSpec& unit) const {
  const int64_t hidden = config_.hidden_size;
  const int64_t query = int64_t{config_.heads} * config_.head_size;
  const int64_t key = int64_t{config_.kv_heads} * config_.head_size;
  const int copies = std::max(1, tp_size_ / config_.kv_heads);
  Rows queries = {.count = query};
  Rows keys = {.count = key, .copies = copies};
  Rows values = keys;
  if (family_.fused_qkv) {
    queries.all = keys.all = values.all = query + 2 * key;
    keys.first = query;
    values.first = query + key;
  }
  AddSplit(kQkv, kQkvBias, family_.qkv_biases,
           {ColumnParallel(layer + names_.query, queries, hidden),
            ColumnParallel(layer + names_.key, keys, hidden),
            ColumnParallel(layer + names_.value, values, hidden)},
           unit);
  unit.tensors.push_back(RowParallel(kAttentionOut, layer + names_.attention_out, hidden, query));
  if (family_.other_biases) {
    unit.tensors.push_back(
        Same(kAttentionOutBias, layer + names_.attention_out + ".bias", Initializer::kZeros));
  }
  if (family_.query_key_norms) {
    unit.tensors.push_back(HeadNorm(kQueryNorm, layer + names_.query_norm, config_.head_size));
    unit.tensors.push_back(HeadNorm(kKeyNorm, layer + names_.key_norm, config_.head_size));
  }
  if (names_.sinks != nullptr) {
    ParameterSlice sinks = BiasOfRows(ColumnParallel(layer + names_.sinks, {config_.heads}, 1));
    sinks.name = layer + names_.sinks;
    sinks.initializer = Initializer::kNormal;
    unit.tensors.push_back({.slices = {std::move(sinks)}, .role = kSinks, .in_first_bucket = true});
  }
}

// Each rank makes a part of the gradient of what all have whole: that of its own heads.
void Cutter::AddLatentMixer(const std::string& layer, UnitSpec& unit) const {
  const int64_t hidden = config_.hidden_size;
  const int64_t queries = int64_t{config_.heads} * config_.head_size;
  const int64_t plain = config_.head_size - config_.rotary_size;
  const bool has_latents = config_.query_rank > 0;
  const Rows whole_query = {.count = config_.query_rank, .copies = tp_size_};
  const Rows whole_key = {.count = config_.key_rank + config_.rotary_size, .copies = tp_size_};
  AddSplit(kQkv, kQkvBias, /*has_bias=*/false,
           {has_latents ? ColumnParallel(layer + names_.query_down, whole_query, hidden)
                        : ColumnParallel(layer + names_.query, {queries}, hidden),
            ColumnParallel(layer + names_.key, whole_key, hidden)},
           unit);
  const auto add_up = [&](BlockTensor role, const char* name, int64_t rows, int rank) {
    unit.tensors.push_back({.slices = {ColumnParallel(layer + name, {rows}, rank)}, .role = role});
  };
  if (has_latents) {
    unit.tensors.push_back(HeadNorm(kQueryNorm, layer + names_.query_norm, config_.query_rank));
    add_up(kQueryUp, names_.query_up, queries, config_.query_rank);
  }
  unit.tensors.push_back(HeadNorm(kKeyNorm, layer + names_.key_norm, config_.key_rank));
  add_up(kKeyValueUp, names_.key_value_up, config_.heads * (plain + config_.value_size),
         config_.key_rank);
  unit.tensors.push_back(RowParallel(kAttentionOut, layer + names_.attention_out, hidden,
                                     int64_t{config_.heads} * config_.value_size));
}

void Cutter::AddFeedForward(const std::string& layer, UnitSpec& unit) const {
  const int64_t hidden = config_.hidden_size;
  AddSplit(kGateUp, kGateUpBias, family_.other_biases,
           GateUp(layer, names_.gate, names_.up, config_.ffn_size), unit);
  unit.tensors.push_back(RowParallel(kDown, layer + names_.down, hidden, config_.ffn_size));
  if (family_.other_biases) {
    unit.tensors.push_back(Same(kDownBias, layer + names_.down + ".bias", Initializer::kZeros));
  }
}

// All ranks of tp have the whole router, and each makes the part of its gradient that comes through
// its slice of the experts.
void Cutter::AddExperts(const std::string& layer, UnitSpec& unit) const {
  const ExpertConfig& experts = config_.experts;
  const int64_t hidden = config_.hidden_size;
  ParameterSlice router = Whole(layer + names_.router + ".weight", 0, Initializer::kNormal);
  router.global_shape = router.extent = {experts.count, hidden};
  router.decayed = true;
  router.tp_copies = tp_size_;
  router.standard_deviation = config_.initializer_range;
  if (family_.other_biases) {
    ParameterSlice bias = BiasOfRows(router);
    bias.initializer = Initializer::kNormal;
    unit.tensors.push_back(
        {.slices = {std::move(bias)}, .role = kRouterLogitBias, .in_first_bucket = true});
  }
  unit.tensors.push_back({.slices = {std::move(router)}, .role = kRouter, .in_first_bucket = true});
  if (family_.router_bias) {
    ParameterSlice bias = Whole(layer + names_.router_bias, experts.count, Initializer::kZeros);
    bias.balances = true;
    unit.tensors.push_back({.slices = {std::move(bias)}, .role = kRouterBias, .same_on_tp = true});
  }
  if (experts.shared_ffn_size > 0) {
    unit.tensors.push_back(
        {.slices = GateUp(layer, names_.shared_gate, names_.shared_up, experts.shared_ffn_size),
         .role = kGateUp});
    unit.tensors.push_back(
        RowParallel(kDown, layer + names_.shared_down, hidden, experts.shared_ffn_size));
  }
  UnitTensor gate_up = {.role = kExpertGateUp, .of_experts = true};
  UnitTensor down = {.role = kExpertDown, .of_experts = true};
  UnitTensor gate_up_bias = {.role = kExpertGateUpBias, .of_experts = true};
  UnitTensor down_bias = {.role = kExpertDownBias, .of_experts = true};
  for (int expert = first_expert_; expert < first_expert_ + local_experts_; ++expert) {
    const std::string prefix = absl::StrCat(layer, names_.experts, ".", expert, ".");
    for (ParameterSlice& slice :
         GateUp(prefix, names_.expert_gate, names_.expert_up, experts.ffn_size)) {
      gate_up_bias.slices.push_back(BiasOfRows(slice));
      gate_up.slices.push_back(std::move(slice));
    }
    UnitTensor of_expert =
        RowParallel(kExpertDown, prefix + names_.expert_down, hidden, experts.ffn_size);
    down.slices.push_back(std::move(of_expert.slices.front()));
    // The first rank adds it to its slice's part of the sum, and alone has a gradient for it.
    ParameterSlice bias = Whole(prefix + names_.expert_down + ".bias", hidden, Initializer::kZeros);
    bias.tp_copies = tp_size_;
    down_bias.slices.push_back(std::move(bias));
  }
  unit.tensors.push_back(std::move(gate_up));
  unit.tensors.push_back(std::move(down));
  if (!family_.other_biases) return;
  unit.tensors.push_back(std::move(gate_up_bias));
  unit.tensors.push_back(std::move(down_bias));
}

std::vector<ParameterSlice> Cutter::GateUp(const std::string& prefix, const char* gate,
                                           const char* up, int64_t ffn) const {
  std::vector<ParameterSlice> slices;
  if (ActivationInputs(family_.activation) == 2) {
    slices.push_back(ColumnParallel(prefix + gate, {ffn}, config_.hidden_size));
  }
  slices.push_back(ColumnParallel(prefix + up, {ffn}, config_.hidden_size));
  return slices;
}

UnitSpec Cutter::Block(int layer) const {
  const std::string prefix = absl::StrCat(names_.layers, ".", layer, ".");
  UnitSpec unit = {.kind = UnitKind::kBlock, .layer = layer};
  AddNorm(kAttentionNorm, kAttentionNormBias, prefix + names_.attention_norm, unit);
  if (family_.latent_attention) {
    AddLatentMixer(prefix, unit);
  } else {
    AddMixer(prefix, unit);
  }
  AddNorm(kMlpNorm, kMlpNormBias, prefix + names_.mlp_norm, unit);
  HasExperts(config_, layer) ? AddExperts(prefix, unit) : AddFeedForward(prefix, unit);
  if (family_.post_norms) {
    AddNorm(kAttentionPostNorm, -1, prefix + names_.attention_post_norm, unit);
    AddNorm(kMlpPostNorm, -1, prefix + names_.mlp_post_norm, unit);
  }
  std::sort(unit.tensors.begin(), unit.tensors.end(),
            [](const UnitTensor& a, const UnitTensor& b) { return a.role < b.role; });
  return unit;
}

UnitSpec Cutter::Head() const {
  UnitSpec unit = {.kind = UnitKind::kHead};
  AddNorm(kFinalNorm, kFinalNormBias, names_.final_norm, unit);
  UnitTensor table = Table(kHead, config_.tied_embeddings ? names_.embedding : names_.head);
  table.slices.front().owned = !table.on_both_ends;
  unit.tensors.insert(unit.tensors.begin() + 1, std::move(table));
  return unit;
}

}  // namespace

int64_t UnitTensor::count() const {
  int64_t count = 0;
  for (const ParameterSlice& slice : slices) count += slice.count();
  return count;
}

std::vector<int> PlacesOf(const UnitSpec& unit) {
  std::vector<int> places;
  for (size_t i = 0; i < unit.tensors.size(); ++i) {
    const auto role = static_cast<size_t>(unit.tensors[i].role);
    places.resize(std::max(places.size(), role + 1), -1);
    places[role] = static_cast<int>(i);
  }
  return places;
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
                              int tp_rank, int ep_size, int ep_rank) {
  CONVENE_CHECK(config.heads % tp_size == 0);
  const Cutter cutter(config, chunk, tp_size, tp_rank, ep_size, ep_rank);
  std::vector<UnitSpec> units;
  if (chunk.has_embedding) units.push_back(cutter.Embedding());
  for (int i = 0; i < chunk.layers; ++i) {
    units.push_back(cutter.Block(chunk.first_layer + i));
  }
  if (chunk.has_head) units.push_back(cutter.Head());
  return units;
}

int64_t ParameterCount(const ModelConfig& config) {
  const ModelChunk whole = {.layers = config.layers, .has_embedding = true, .has_head = true};
  int64_t count = 0;
  for (const UnitSpec& unit : UnitsOf(config, whole, /*tp_size=*/1, /*tp_rank=*/0)) {
    const bool is_tied_head = unit.kind == UnitKind::kHead && config.tied_embeddings;
    for (const UnitTensor& tensor : unit.tensors) {
      if (!is_tied_head || tensor.role != kHead) count += tensor.count();
    }
  }
  return count;
}

}  // namespace convene::worker
