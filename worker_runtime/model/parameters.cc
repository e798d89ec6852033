#include "worker_runtime/model/parameters.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

bool ByRole(const UnitTensor& a, const UnitTensor& b) { return a.role < b.role; }

// Without ".weight".
absl::string_view NameOf(const ParameterSlice& slice) {
  return absl::StripSuffix(slice.name, ".weight");
}

const AdaptedTensor* FindAdapted(const UnitTensor& tensor) {
  const auto* const found =
      std::find_if(std::begin(kAdapted), std::end(kAdapted),
                   [&](const AdaptedTensor& adapted) { return adapted.tensor == tensor.role; });
  return found == std::end(kAdapted) ? nullptr : found;
}

ModelChunk WholeModel(const ModelConfig& config) {
  return {.layers = config.layers, .has_embedding = true, .has_head = true};
}

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
  // Of a block without adapters: adds them, and freezes all else. Of other units: freezes them.
  void AddAdapters(UnitSpec& unit) const;

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

  // The adapter's A and B of a slice of a matrix.
  std::pair<ParameterSlice, ParameterSlice> AdapterOf(const ParameterSlice& slice,
                                                      bool is_row_parallel) const;

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
    const bool whole = family_.whole_norms;
    const auto add = [&](BlockTensor role, const char* name, int64_t all_heads) {
      const auto size = static_cast<int>(whole ? all_heads : config_.head_size);
      unit.tensors.push_back(HeadNorm(role, layer + name, size));
    };
    add(kQueryNorm, names_.query_norm, query);
    add(kKeyNorm, names_.key_norm, key);
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

// All ranks of tp have the whole router and the gate of the shared experts, and each makes the part
// of their gradients that comes through its slice of the experts.
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
    if (names_.shared_router != nullptr) {
      ParameterSlice gate =
          Whole(layer + names_.shared_router + ".weight", hidden, Initializer::kNormal);
      gate.decayed = true;
      gate.tp_copies = tp_size_;
      gate.standard_deviation = config_.initializer_range;
      unit.tensors.push_back(
          {.slices = {std::move(gate)}, .role = kSharedGate, .in_first_bucket = true});
    }
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
  Rows gates = {.count = ffn};
  Rows ups = gates;
  if (family_.fused_gate_up) {
    gates.all = ups.all = 2 * ffn;
    ups.first = ffn;
  }
  if (ActivationInputs(family_.activation) == 2) {
    slices.push_back(ColumnParallel(prefix + gate, gates, config_.hidden_size));
  }
  slices.push_back(ColumnParallel(prefix + up, ups, config_.hidden_size));
  return slices;
}

UnitSpec Cutter::Block(int layer) const {
  const std::string prefix = absl::StrCat(names_.layers, ".", layer, ".");
  UnitSpec unit = {.kind = UnitKind::kBlock, .layer = layer};
  if (family_.pre_norms) {
    AddNorm(kAttentionNorm, kAttentionNormBias, prefix + names_.attention_norm, unit);
    AddNorm(kMlpNorm, kMlpNormBias, prefix + names_.mlp_norm, unit);
  }
  if (family_.latent_attention) {
    AddLatentMixer(prefix, unit);
  } else {
    AddMixer(prefix, unit);
  }
  HasExperts(config_, layer) ? AddExperts(prefix, unit) : AddFeedForward(prefix, unit);
  if (family_.post_norms) {
    AddNorm(kAttentionPostNorm, -1, prefix + names_.attention_post_norm, unit);
    AddNorm(kMlpPostNorm, -1, prefix + names_.mlp_post_norm, unit);
  }
  std::sort(unit.tensors.begin(), unit.tensors.end(), ByRole);
  return unit;
}

// Kaiming's uniform start with a = sqrt(5), as PEFT's: within 1 / sqrt(inputs). B begins as zeros,
// so the model begins as it was. Of the factor that all ranks have, each makes a part of the
// gradient (parallel/low_rank.h).
std::pair<ParameterSlice, ParameterSlice> Cutter::AdapterOf(const ParameterSlice& slice,
                                                            bool is_row_parallel) const {
  const absl::string_view name = NameOf(slice);
  const int64_t rank = config_.adapter.rank;
  const auto whole = [&](ParameterSlice& factor) {
    factor.owned = tp_rank_ == 0;
    factor.tp_copies = tp_size_;
  };
  const auto in = static_cast<double>(slice.global_shape[1]);
  ParameterSlice a = {.name = AdapterA(name),
                      .global_shape = {rank, slice.global_shape[1]},
                      .offset = {0, slice.offset[1]},
                      .extent = {rank, slice.extent[1]},
                      .initializer = Initializer::kUniform,
                      .standard_deviation = 1 / std::sqrt(3 * in)};
  ParameterSlice b = {.name = AdapterB(name),
                      .global_shape = {slice.global_shape[0], rank},
                      .offset = {slice.offset[0], 0},
                      .extent = {slice.extent[0], rank},
                      .owned = slice.owned,
                      .tp_copies = slice.tp_copies,
                      .initializer = Initializer::kZeros};
  whole(is_row_parallel ? b : a);
  return {std::move(a), std::move(b)};
}

// Neighbouring slices of one name are parts of one matrix, with one A.
void Cutter::AddAdapters(UnitSpec& unit) const {
  if (!config_.adapter.is_on()) return;
  std::vector<UnitTensor> adapters;
  for (const UnitTensor& tensor : unit.tensors) {
    const AdaptedTensor* const found =
        unit.kind == UnitKind::kBlock ? FindAdapted(tensor) : nullptr;
    if (found == nullptr) continue;
    UnitTensor a = {.role = found->a, .in_first_bucket = true};
    UnitTensor b = {.role = found->b, .in_first_bucket = true};
    for (const ParameterSlice& slice : tensor.slices) {
      if (!IsTarget(config_.adapter, NameOf(slice))) continue;
      auto [of_a, of_b] =
          AdapterOf(slice, found->tensor == kAttentionOut || found->tensor == kDown);
      if (a.slices.empty() || a.slices.back().name != of_a.name)
        a.slices.push_back(std::move(of_a));
      b.slices.push_back(std::move(of_b));
    }
    if (a.slices.empty()) continue;
    adapters.push_back(std::move(a));
    adapters.push_back(std::move(b));
  }
  for (UnitTensor& tensor : unit.tensors) {
    tensor.is_frozen = true;
    for (ParameterSlice& slice : tensor.slices) slice.tp_copies = 1;
  }
  std::move(adapters.begin(), adapters.end(), std::back_inserter(unit.tensors));
  std::sort(unit.tensors.begin(), unit.tensors.end(), ByRole);
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
  for (UnitSpec& unit : units) cutter.AddAdapters(unit);
  return units;
}

namespace {

// Of the tensors that `counts` says.
int64_t Count(const ModelConfig& config, absl::FunctionRef<bool(const UnitTensor&)> counts) {
  int64_t count = 0;
  for (const UnitSpec& unit : UnitsOf(config, WholeModel(config), /*tp_size=*/1, /*tp_rank=*/0)) {
    const bool is_tied_head = unit.kind == UnitKind::kHead && config.tied_embeddings;
    for (const UnitTensor& tensor : unit.tensors) {
      if (counts(tensor) && (!is_tied_head || tensor.role != kHead)) count += tensor.count();
    }
  }
  return count;
}

absl::Status ValidateTargets(const ModelConfig& config) {
  std::set<std::string> ends;  // of the names, behind the last point
  std::vector<std::string> names;
  for (const UnitSpec& unit : UnitsOf(config, WholeModel(config), /*tp_size=*/1, /*tp_rank=*/0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      if (unit.kind != UnitKind::kBlock || FindAdapted(tensor) == nullptr) continue;
      for (const ParameterSlice& slice : tensor.slices) {
        names.emplace_back(NameOf(slice));
        ends.insert(names.back().substr(names.back().rfind('.') + 1));
      }
    }
  }
  for (const std::string& target : config.adapter.targets) {
    AdapterConfig alone = config.adapter;
    alone.targets = {target};
    if (absl::c_any_of(names, [&](const std::string& name) { return IsTarget(alone, name); })) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("lora_targets names ", target,
                     ", which is no matrix of this model that may have an adapter; these may: ",
                     absl::StrJoin(ends, ", ")));
  }
  return absl::OkStatus();
}

// Whether one flag can speak for each block of elements, though ranks own other slices.
bool IsCutInBlocks(const UnitTensor& tensor) {
  int64_t begin = 0;
  for (size_t i = 1; i < tensor.slices.size(); ++i) {
    begin += tensor.slices[i - 1].count();
    if (tensor.slices[i].owned != tensor.slices[i - 1].owned && begin % kParameterAlignment != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

int64_t ParameterCount(const ModelConfig& config) {
  return Count(config, [](const UnitTensor&) { return true; });
}

int64_t TrainedCount(const ModelConfig& config) {
  return Count(config, [](const UnitTensor& tensor) { return !tensor.is_frozen; });
}

absl::Status ValidateAdapters(const ModelConfig& config, int tp_size) {
  const AdapterConfig& adapter = config.adapter;
  if (!adapter.is_on()) return absl::OkStatus();
  if (adapter.rank > config.hidden_size) {
    return absl::InvalidArgumentError(absl::StrCat("lora_rank ", adapter.rank,
                                                   " must be at most the model's hidden_size, ",
                                                   config.hidden_size));
  }
  if (!(adapter.alpha > 0) || !std::isfinite(adapter.alpha)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lora_alpha ", adapter.alpha, " must be greater than 0"));
  }
  CONVENE_RETURN_IF_ERROR(ValidateTargets(config));
  // The last rank owns no copy.
  for (const UnitSpec& unit : UnitsOf(config, WholeModel(config), tp_size, tp_size - 1)) {
    for (const UnitTensor& tensor : unit.tensors) {
      if (IsCutInBlocks(tensor)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "lora_rank ", adapter.rank, " gives the query rows of a rank a part of ", tensor.name(),
          " that is no multiple of ", kParameterAlignment, " values, and with tp_size ", tp_size,
          " key and value heads are copied behind it; choose a rank that is a multiple of ",
          kParameterAlignment / std::gcd(kParameterAlignment, tensor.slices.front().extent[0])));
    }
  }
  return absl::OkStatus();
}

double HeadCost(const ModelConfig& config) {
  const std::vector<UnitSpec> block = UnitsOf(config, {.layers = 1}, /*tp_size=*/1, /*tp_rank=*/0);
  int64_t layer = 0;
  for (const UnitTensor& tensor : block.front().tensors) {
    for (const ParameterSlice& slice : tensor.slices) layer += slice.decayed ? slice.count() : 0;
  }
  return static_cast<double>(config.vocabulary_size) * config.hidden_size /
         static_cast<double>(layer);
}

}  // namespace convene::worker
