#include "worker_runtime/model/block_adapters.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker {
namespace {

// Query, key and value are the most matrices that one layer has; gate and up an expert's.
constexpr int64_t kAdaptersMax = 3;
constexpr int64_t kExpertAdaptersMax = 2;
// More than the number of any tensor.
constexpr int kTensors = kExpertDownB + 1;

// Elements that all layers share.
struct ScratchCounts {
  int64_t spread, inner, dropped, b_gradient;
};

ScratchCounts CountsOf(const BlockShape& s, const AdapterConfig& config) {
  const int64_t ranks = kAdaptersMax * config.rank;
  const int64_t out = std::max({s.first_width(), s.hidden, s.gate_up_width(), s.attention_width(),
                                s.family->latent_attention ? s.key_value_width() : 0});
  const int64_t in = std::max({s.hidden, s.ffn, s.last_width(), s.query_rank, s.key_rank});
  ScratchCounts counts = {out * ranks, s.rows() * ranks, s.rows() * in, out * config.rank};
  if (!s.experts.has_adapters) return counts;
  const DispatchShape& dispatch = s.experts.dispatch;
  const int64_t expert_ranks = kExpertAdaptersMax * config.rank;
  const int64_t expert_out =
      int64_t{dispatch.local_experts()} *
      std::max(s.hidden, ActivationInputs(s.family->activation) * s.experts.ffn);
  counts.spread = std::max(counts.spread, expert_out * expert_ranks);
  counts.inner = std::max(counts.inner, dispatch.bound * expert_ranks);
  counts.dropped =
      std::max(counts.dropped, int64_t{dispatch.bound} * std::max(s.hidden, s.experts.ffn));
  counts.b_gradient = std::max(counts.b_gradient, expert_out * config.rank);
  return counts;
}

}  // namespace

template <typename T>
AdapterScratch<T> DeclareAdapterScratch(const BlockShape& s, const AdapterConfig& config,
                                        Arena& arena) {
  if (!config.is_on()) return {};
  const ScratchCounts counts = CountsOf(s, config);
  return {.spread = arena.Declare<T>("scratch/adapter", counts.spread),
          .inner = arena.Declare<T>("scratch/adapter", counts.inner),
          .inner_gradient = arena.Declare<T>("scratch/adapter", counts.inner),
          .dropped = arena.Declare<T>("scratch/adapter", config.dropout > 0 ? counts.dropped : 0),
          .spread_gradient = arena.Declare<float>("scratch/adapter gradient", counts.spread),
          .b_gradient = arena.Declare<float>("scratch/adapter gradient", counts.b_gradient)};
}

template <typename T>
BlockAdapters<T>::BlockAdapters(const UnitSpec& unit, const AdapterConfig& config, uint64_t seed,
                                const AdapterScratch<T>& scratch)
    : rank_(config.rank), scale_(static_cast<float>(config.scale())), scratch_(scratch) {
  const std::vector<int> places = PlacesOf(unit);
  const auto slices = [&](BlockTensor role) -> const std::vector<ParameterSlice>& {
    return unit.tensors[places[role]].slices;
  };
  for (const auto& [tensor, a, b] : kAdapted) {
    if (static_cast<size_t>(a) >= places.size() || places[a] < 0) continue;
    Layer layer = {.a = a, .b = b};
    layer.dropout = {.probability = config.dropout,
                     .seed = seed,
                     .layer = static_cast<uint32_t>(unit.layer * kTensors + tensor),
                     .first_column = static_cast<int>(slices(a).front().offset[1])};
    auto factor = slices(b).begin();
    std::string last;
    int first_out = 0;
    int first_b_row = 0;
    // The experts are all alike: the first one tells their parts.
    const bool of_experts = unit.tensors[places[tensor]].of_experts;
    const size_t layers = of_experts ? slices(kExpertDown).size() : 1;
    for (const ParameterSlice& slice :
         absl::MakeConstSpan(slices(tensor)).subspan(0, slices(tensor).size() / layers)) {
      const auto out = static_cast<int>(slice.extent[0]);
      if (factor != slices(b).end() &&
          factor->name == AdapterB(absl::StripSuffix(slice.name, ".weight"))) {
        if (factor->name != last) layer.ranks += rank_;
        last = factor->name;
        layer.parts.push_back({first_out, out, first_b_row, layer.ranks - rank_});
        first_b_row += out;
        ++factor;
      }
      first_out += out;
    }
    layers_[tensor] = std::move(layer);
  }
}

template <typename T>
LowRank<T> BlockAdapters<T>::Of(const Pass<T>& pass, BlockTensor tensor) const {
  const auto found = layers_.find(tensor);
  if (found == layers_.end()) return {};
  const Layer& layer = found->second;
  DropoutMask dropout = layer.dropout;
  dropout.tokens = pass.token_numbers;
  return {.parts = layer.parts,
          .rank = rank_,
          .ranks = layer.ranks,
          .scale = scale_,
          .a = pass.Weight(layer.a),
          .b = pass.Weight(layer.b),
          .dropout = dropout,
          .dropped = At(scratch_.dropped),
          .spread = At(scratch_.spread),
          .inner = At(scratch_.inner),
          .inner_gradient = At(scratch_.inner_gradient),
          .spread_gradient = At(scratch_.spread_gradient),
          .b_gradient = At(scratch_.b_gradient),
          .device = pass.around.device};
}

template <typename T>
LowRank<T> BlockAdapters<T>::WithGradients(const Pass<T>& pass, BlockTensor tensor,
                                           bool adds) const {
  LowRank<T> adapter = Of(pass, tensor);
  const auto found = layers_.find(tensor);
  if (found == layers_.end()) return adapter;
  adapter.da = pass.Gradient(found->second.a);
  adapter.db = pass.Gradient(found->second.b);
  adapter.da.adds |= adds;
  adapter.db.adds |= adds;
  return adapter;
}

CONVENE_INSTANTIATE(DeclareAdapterScratch);
template class BlockAdapters<float>;
template class BlockAdapters<BFloat16>;

}  // namespace convene::worker
