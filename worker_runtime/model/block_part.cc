#include "worker_runtime/model/block_part.h"

#include <algorithm>
#include <cmath>

#include "tools/base/check.h"
#include "worker_runtime/ops/rope.h"

namespace convene::worker {
namespace {

// AttentionShape's. With YaRN latent attention makes scores larger, by DeepSeek's mscale_all_dim.
float ScoreScale(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  if (config.family->latent_attention && YarnScale(scaling, scaling.mscale_all_dim) != 1) {
    return static_cast<float>(std::pow(YarnScale(scaling, scaling.mscale_all_dim), 2) /
                              std::sqrt(config.head_size));
  }
  if (config.multipliers.scores > 0) return static_cast<float>(config.multipliers.scores);
  return config.query_scalar > 0 ? static_cast<float>(1 / std::sqrt(config.query_scalar)) : 0;
}

}  // namespace

LinearShape LinearShapeOf(const BlockShape& s, BlockTensor tensor) {
  switch (tensor) {
    case kQkv:
      return {s.rows(), s.first_width(), s.hidden};
    case kAttentionOut:
      return {s.rows(), s.hidden, s.last_width()};
    case kGateUp:
      return {s.rows(), s.gate_up_width(), s.hidden};
    case kDown:
      return {s.rows(), s.hidden, s.ffn};
    default:
      break;
  }
  CONVENE_CHECK(false);
}

BlockShape MakeBlockShape(const ModelConfig& config, int tp_size, bool sequence_parallel,
                          int micro_batch_size, int sequence_length, bool deterministic,
                          bool packed) {
  const int rows = micro_batch_size * sequence_length;
  return {.batch = micro_batch_size,
          .sequence_length = sequence_length,
          .residual_rows = sequence_parallel ? rows / tp_size : rows,
          .hidden = config.hidden_size,
          .heads = config.heads / tp_size,
          .kv_heads = std::max(1, config.kv_heads / tp_size),
          .head_size = config.head_size,
          .ffn = config.ffn_size / tp_size,
          .family = config.family,
          .norm_epsilon = static_cast<float>(config.norm_epsilon),
          .score_scale = ScoreScale(config),
          .score_cap = static_cast<float>(config.score_cap),
          .branch_scale = static_cast<float>(config.multipliers.branches),
          .rotary_size = config.rotary_size > 0 ? config.rotary_size : config.head_size,
          .query_rank = config.query_rank,
          .key_rank = config.key_rank,
          .value_size = config.value_size,
          .deterministic = deterministic,
          .packed = packed};
}

BlockShape ShapeOfLayer(const BlockShape& shape, const ModelConfig& config, int layer, int tp_size,
                        int ep_size, int ep_rank) {
  if (!HasExperts(config, layer)) return shape;
  const ExpertConfig& experts = config.experts;
  BlockShape s = shape;
  s.ffn = experts.shared_ffn_size / tp_size;
  s.experts.router = {.rows = s.rows(),
                      .experts = experts.count,
                      .chosen = experts.chosen,
                      .score = config.family->router_score,
                      .normalizes = config.family->normalizes_router,
                      .scale = static_cast<float>(experts.weight_scale),
                      .groups = experts.groups,
                      .chosen_groups = experts.chosen_groups,
                      .judges_by_best = config.family->groups_by_best};
  DispatchShape& dispatch = s.experts.dispatch;
  dispatch = {.ranks = ep_size,
              .rank = ep_rank,
              .rows = s.rows(),
              .chosen = experts.chosen,
              .experts = experts.count};
  dispatch.bound = BoundOf(dispatch, experts.memory_factor);
  s.experts.ffn = experts.ffn_size / tp_size;
  s.experts.balance_loss = static_cast<float>(experts.balance_loss);
  s.experts.z_loss = static_cast<float>(experts.z_loss);
  return s;
}

BlockShape RoomForBoth(const BlockShape& a, const BlockShape& b) {
  BlockShape s = a;
  s.ffn = std::max(a.ffn, b.ffn);
  if (b.experts.is_on()) s.experts = b.experts;
  return s;
}

}  // namespace convene::worker
