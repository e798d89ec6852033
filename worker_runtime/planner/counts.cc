#include "worker_runtime/planner/counts.h"

#include <algorithm>

#include "worker_runtime/ops/kinds.h"
#include "worker_runtime/schedule/chunk_layers.h"

namespace convene::worker {
namespace {

UnitCount CountUnit(const UnitSpec& unit, const ModelConfig& config, int ep) {
  UnitCount count;
  for (const UnitTensor& tensor : unit.tensors) {
    const auto elements = static_cast<double>(tensor.count());
    const bool is_apart = tensor.of_experts && ep > 1;
    (is_apart ? count.expert_parameters : count.parameters) += elements;
    (is_apart ? count.expert_matrices : count.matrices).Add(tensor);
    if (tensor.same_on_tp || tensor.in_first_bucket) count.in_first_bucket += elements;
    if (tensor.on_both_ends) count.tied += elements;
    if (unit.kind == UnitKind::kEmbedding) continue;
    const bool is_matrix =
        tensor.slices.front().global_shape[0] > 1 && tensor.slices.front().decayed;
    if (!is_matrix) continue;
    // Each token meets so many of all experts; this rank has 1/ep of them.
    const double met =
        tensor.of_experts ? elements * ep * config.experts.chosen / config.experts.count : elements;
    (tensor.of_experts ? count.expert_multiplied : count.multiplied) += met;
    if (tensor.is_frozen) count.frozen += met;
  }
  return count;
}

}  // namespace

void MatrixCount::Add(const UnitTensor& tensor) {
  for (const ParameterSlice& slice : tensor.slices) {
    if (!slice.is_matrix()) continue;
    const auto count = static_cast<double>(slice.count());
    elements += count;
    if (tensor.same_on_tp || tensor.in_first_bucket) in_first_bucket += count;
    largest = std::max(largest, slice.matrix_rows * slice.global_shape[1]);
    shorter_side = std::max(shorter_side, std::min(slice.matrix_rows, slice.global_shape[1]));
  }
}

const ModelCounts::Units& ModelCounts::Of(int tp, int ep) {
  const auto [found, is_new] = units_.try_emplace({tp, ep});
  Units& units = found->second;
  if (!is_new) return units;
  const ModelChunk ends = {
      .layers = 1, .has_embedding = true, .has_head = true, .ends_apart = true};
  const std::vector<UnitSpec> first = UnitsOf(config_, ends, tp, 0, ep, 0);
  units.embedding = CountUnit(first[0], config_, ep);
  units.dense = CountUnit(first[1], config_, ep);
  units.head = CountUnit(first[2], config_, ep);
  if (config_.experts.count == 0) return units;
  const ModelChunk with_experts = {.first_layer = config_.experts.first_dense_layers, .layers = 1};
  units.expert = CountUnit(UnitsOf(config_, with_experts, tp, 0, ep, 0).front(), config_, ep);
  return units;
}

RankCount ModelCounts::Sum(const std::vector<ChunkCount>& chunks, const Units& units) {
  RankCount sum;
  for (const ChunkCount& chunk : chunks) {
    sum.whole += chunk.dense * units.dense.parameters + chunk.expert * units.expert.parameters;
    sum.experts += chunk.expert * units.expert.expert_parameters;
    sum.matrices +=
        chunk.dense * units.dense.matrices.elements + chunk.expert * units.expert.matrices.elements;
    sum.expert_matrices += chunk.expert * units.expert.expert_matrices.elements;
    sum.layers += chunk.layers();
    sum.expert_layers += chunk.expert;
    sum.has_embedding |= chunk.has_embedding;
    sum.has_head |= chunk.has_head;
  }
  if (sum.has_embedding) sum.whole += units.embedding.parameters;
  if (sum.has_head) sum.whole += units.head.parameters;
  if (sum.has_embedding && sum.has_head) sum.whole -= units.head.tied;
  return sum;
}

const StageCounts& ModelCounts::Stages(int pp, int virtual_stages) {
  const auto [found, is_new] = stages_.try_emplace({pp, virtual_stages});
  StageCounts& stages = found->second;
  if (!is_new) return stages;
  const int chunks = pp * virtual_stages;
  const auto cut = CutLayers("", config_.layers, chunks, HeadCost(config_));
  if (!cut.ok()) return stages;
  stages.ranks.resize(pp);
  int layer = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ChunkCount count = {.has_embedding = chunk == 0, .has_head = chunk == chunks - 1};
    for (const int end = layer + (*cut)[chunk]; layer < end; ++layer) {
      ++(HasExperts(config_, layer) ? count.expert : count.dense);
    }
    stages.ranks[chunk % pp].push_back(count);
  }
  for (int rank = 0; rank < pp; ++rank) {
    const auto known = std::find_if(stages.distinct.begin(), stages.distinct.end(), [&](int other) {
      return stages.ranks[other] == stages.ranks[rank];
    });
    if (known == stages.distinct.end()) {
      stages.distinct.push_back(rank);
      stages.last.push_back(rank);
    } else {
      stages.last[known - stages.distinct.begin()] = rank;
    }
  }
  return stages;
}

double MeanKeys(const ModelConfig& config, int layer, int64_t sequence_length) {
  const auto length = static_cast<double>(sequence_length);
  const double window = WindowOf(config, layer);
  if (window == 0 || window >= length) return length / 2;
  // The first queries see less than the window.
  return window - window * window / (2 * length);
}

TokenFlops FlopsOf(const ModelConfig& config, int64_t sequence_length, ModelCounts& counts) {
  const ModelCounts::Units& units = counts.Of(1, 1);
  TokenFlops flops;
  // A frozen matrix has no product for a gradient of its own.
  const auto products = [](const UnitCount& unit) {
    return 6 * (unit.multiplied + unit.expert_multiplied) - 2 * unit.frozen;
  };
  flops.products = products(units.head);
  const int value_size = config.value_size > 0 ? config.value_size : config.head_size;
  for (int layer = 0; layer < config.layers; ++layer) {
    const UnitCount& unit = HasExperts(config, layer) ? units.expert : units.dense;
    flops.products += products(unit);
    // Scores, and their sum of values: 2 products, and 4 in the backward pass.
    const double a_key = 6.0 * config.heads * (config.head_size + value_size);
    const double window = WindowOf(config, layer);
    const auto length = static_cast<double>(sequence_length);
    flops.full_attention += a_key * (window > 0 ? std::min(window, length) : length);
    flops.causal_attention += a_key * MeanKeys(config, layer, sequence_length);
  }
  return flops;
}

double RecomputedShare(const ModelConfig& config, const Recompute& again) {
  const double inputs = ActivationInputs(config.family->activation);
  const double qkv = (config.heads + 2.0 * config.kv_heads) * config.head_size;
  const double attention = static_cast<double>(config.heads) * config.head_size;
  const double ffn = config.ffn_size;
  double widths = 0;
  if (again.attention) widths += qkv;
  if (again.mlp) widths += inputs * ffn;
  if (again.middle) widths += attention;
  return widths / (qkv + attention + (inputs + 1) * ffn);
}

double RecomputedFlops(const ModelConfig& config, const Recompute& again, const TokenFlops& flops,
                       ModelCounts& counts) {
  const ModelCounts::Units& units = counts.Of(1, 1);
  double forward = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    const UnitCount& unit = HasExperts(config, layer) ? units.expert : units.dense;
    forward += 2 * (unit.multiplied + unit.expert_multiplied);
  }
  // Of attention's six products two are the forward pass's.
  return RecomputedShare(config, again) * forward +
         (again.attention ? flops.full_attention / 3 : 0);
}

}  // namespace convene::worker
