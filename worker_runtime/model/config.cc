#include "worker_runtime/model/config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Larger sizes are surely typing errors. Within these bounds no product of sizes overflows int64.
constexpr int kMostLayers = 4096;
constexpr int kLargestSize = 1 << 20;

// "1, 2, 3 or 6": the numbers from 1 to `largest` that are legal; of many, the eight nearest to
// `wanted`; "" of none.
std::string NearestLegal(int largest, int wanted, absl::FunctionRef<bool(int)> is_legal) {
  std::vector<int> legal;
  for (int n = 1; n <= largest; ++n) {
    if (is_legal(n)) legal.push_back(n);
  }
  if (legal.empty()) return "";
  constexpr size_t kShown = 8;
  if (legal.size() > kShown) {
    std::stable_sort(legal.begin(), legal.end(), [wanted](int a, int b) {
      return std::abs(a - wanted) < std::abs(b - wanted);
    });
    legal.resize(kShown);
    std::sort(legal.begin(), legal.end());
  }
  const int last = legal.back();
  legal.pop_back();
  if (legal.empty()) return absl::StrCat(last);
  return absl::StrCat(absl::StrJoin(legal, ", "), " or ", last);
}

absl::Status CheckSize(const char* name, int value, int largest) {
  if (value >= 1 && value <= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", value, " must be a number from 1 to ", largest));
}

absl::Status CheckPositive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, " must be greater than 0"));
}

absl::Status CheckNotNegative(const char* name, double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, " must be 0 or greater"));
}

absl::Status ValidateScaling(const RopeScaling& scaling) {
  CONVENE_RETURN_IF_ERROR(CheckPositive("rope_scaling_factor", scaling.factor));
  CONVENE_RETURN_IF_ERROR(CheckPositive("rope_low_frequency_factor", scaling.low_frequency_factor));
  if (scaling.factor < 1) {
    return absl::InvalidArgumentError(absl::StrCat("rope_scaling_factor ", scaling.factor,
                                                   " must be at least 1 (1 = no scaling)"));
  }
  if (!std::isfinite(scaling.high_frequency_factor) ||
      scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_high_frequency_factor ", scaling.high_frequency_factor,
                     " must be greater than rope_low_frequency_factor, which is ",
                     scaling.low_frequency_factor));
  }
  return CheckSize("rope_original_positions", scaling.original_positions,
                   std::numeric_limits<int>::max());
}

absl::Status ValidateRotary(const ModelConfig& config) {
  const int size = config.rotary_size;
  if (size >= 0 && size <= config.head_size && size % 2 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rotary_size ", size, " must be an even number from 0 to head_size ",
                   config.head_size, ": rotary positions turn pairs of a head's values"));
}

absl::Status ValidateLatents(const ModelConfig& config) {
  if (!config.family->latent_attention) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(CheckSize("rotary_size", config.rotary_size, config.head_size));
  CONVENE_RETURN_IF_ERROR(CheckSize("key_rank", config.key_rank, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("value_size", config.value_size, config.head_size));
  if (config.query_rank != 0) {
    CONVENE_RETURN_IF_ERROR(CheckSize("query_rank", config.query_rank, kLargestSize));
  }
  if (config.kv_heads == config.heads) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("kv_heads ", config.kv_heads, " must be heads ", config.heads,
                   ": latent attention makes a key and a value for each query head"));
}

absl::Status ValidateMultipliers(const ModelConfig& config) {
  if (!config.family->has_multipliers) return absl::OkStatus();
  const Multipliers& by = config.multipliers;
  CONVENE_RETURN_IF_ERROR(CheckPositive("embedding_multiplier", by.embedding));
  CONVENE_RETURN_IF_ERROR(CheckPositive("attention_multiplier", by.scores));
  CONVENE_RETURN_IF_ERROR(CheckPositive("residual_multiplier", by.branches));
  return CheckPositive("logits_scaling", by.logits);
}

absl::Status ValidateShape(const ModelConfig& config) {
  CONVENE_RETURN_IF_ERROR(CheckSize("layers", config.layers, kMostLayers));
  CONVENE_RETURN_IF_ERROR(CheckSize("hidden_size", config.hidden_size, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("ffn_size", config.ffn_size, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("heads", config.heads, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("kv_heads", config.kv_heads, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("head_size", config.head_size, kLargestSize / config.heads));
  CONVENE_RETURN_IF_ERROR(CheckSize("vocabulary_size", config.vocabulary_size, kLargestSize));
  if (config.family->learned_positions) {
    CONVENE_RETURN_IF_ERROR(CheckSize("positions", config.positions, kLargestSize));
  }
  CONVENE_RETURN_IF_ERROR(CheckPositive("rope_theta", config.rope_theta));
  CONVENE_RETURN_IF_ERROR(CheckPositive("norm_epsilon", config.norm_epsilon));
  CONVENE_RETURN_IF_ERROR(CheckPositive("initializer_range", config.initializer_range));
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("window_rope_theta", config.window_rope_theta));
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("query_scalar", config.query_scalar));
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("score_cap", config.score_cap));
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("logit_cap", config.logit_cap));
  CONVENE_RETURN_IF_ERROR(ValidateScaling(config.rope_scaling));
  if (config.heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "heads ", config.heads, " cannot share kv_heads ", config.kv_heads,
        " evenly; kv_heads can be ",
        NearestLegal(config.heads, config.kv_heads, [&](int n) { return config.heads % n == 0; })));
  }
  if (config.head_size % 2 != 0 && !config.family->learned_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_size ", config.head_size,
                     " is odd, but rotary positions turn pairs of values; head_size can be ",
                     config.head_size == 1 ? "" : absl::StrCat(config.head_size - 1, " or "),
                     config.head_size + 1));
  }
  CONVENE_RETURN_IF_ERROR(ValidateRotary(config));
  CONVENE_RETURN_IF_ERROR(ValidateMultipliers(config));
  return ValidateLatents(config);
}

absl::Status ValidateGroups(const ModelConfig& config) {
  const ExpertConfig& experts = config.experts;
  // By whose scores a group is judged.
  const int judges = config.family->groups_by_best ? 1 : 2;
  const auto is_legal = [&](int groups) {
    return experts.count % groups == 0 && (groups == 1 || experts.count / groups >= judges);
  };
  if (!is_legal(experts.groups)) {
    const std::string legal = NearestLegal(experts.count, experts.groups, [&](int groups) {
      return is_legal(groups) && groups >= experts.chosen_groups &&
             experts.count / groups * experts.chosen_groups >= experts.chosen;
    });
    return absl::InvalidArgumentError(absl::StrCat(
        "experts ", experts.count, " cannot stand in ", experts.groups,
        " groups of equal size, each judged by ", judges, judges == 1 ? " expert" : " experts",
        legal.empty()
            ? absl::StrCat("; no number of groups goes with router_groups_per_token ",
                           experts.chosen_groups, " and experts_per_token ", experts.chosen)
            : absl::StrCat("; router_groups can be ", legal)));
  }
  const int reachable = experts.count / experts.groups * experts.chosen_groups;
  if (experts.chosen <= reachable) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "experts_per_token ", experts.chosen, " is more than the experts in ", experts.chosen_groups,
      " of ", experts.groups, " groups; experts_per_token can be at most ", reachable));
}

absl::Status ValidateExpertRanks(const ModelConfig& config, const Layout& layout) {
  const int experts = config.experts.count;
  const auto is_legal = [&](int ep) {
    Layout tried = layout;
    tried.ep = ep;
    return experts % ep == 0 && tried.has_legal_ep();
  };
  if (is_legal(layout.ep)) return absl::OkStatus();
  const std::string why =
      experts % layout.ep != 0
          ? absl::StrCat("experts ", experts, " cannot be shared out evenly over ep_size ",
                         layout.ep)
          : absl::StrCat("ep_size ", layout.ep, " does not come out even with ", layout.ToString(),
                         ", whose ", layout.gradient_ranks(),
                         " ranks of dp x cp share its experts");
  return absl::InvalidArgumentError(
      absl::StrCat(why, "; ep_size can be ",
                   NearestLegal(std::min(experts, layout.gradient_ranks()), layout.ep, is_legal)));
}

absl::Status ValidateExperts(const ModelConfig& config, const Layout& layout) {
  const ExpertConfig& experts = config.experts;
  if (experts.count == 0) {
    if (layout.ep == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "ep_size ", layout.ep, " splits experts, and the model has none; leave ep_size out"));
  }
  CONVENE_RETURN_IF_ERROR(CheckSize("experts", experts.count, kRouterExpertsMax));
  CONVENE_RETURN_IF_ERROR(CheckSize("expert_ffn_size", experts.ffn_size, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("experts_per_token", experts.chosen, experts.count));
  CONVENE_RETURN_IF_ERROR(CheckSize("router_groups", experts.groups, experts.count));
  CONVENE_RETURN_IF_ERROR(
      CheckSize("router_groups_per_token", experts.chosen_groups, experts.groups));
  CONVENE_RETURN_IF_ERROR(CheckPositive("router_weight_scale", experts.weight_scale));
  if (experts.shared_ffn_size != 0) {
    CONVENE_RETURN_IF_ERROR(CheckSize("shared_ffn_size", experts.shared_ffn_size, kLargestSize));
  }
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("router_balance_loss", experts.balance_loss));
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("router_z_loss", experts.z_loss));
  CONVENE_RETURN_IF_ERROR(CheckNotNegative("router_bias_rate", experts.bias_rate));
  CONVENE_RETURN_IF_ERROR(CheckPositive("expert_memory_factor", experts.memory_factor));
  CONVENE_RETURN_IF_ERROR(ValidateGroups(config));
  return ValidateExpertRanks(config, layout);
}

// Why so many ranks cannot split the model, or share its key and value heads; empty: they can.
std::string WhyNotOver(const ModelConfig& config, int tp) {
  if (tp > 1 && config.family->whole_norms) {
    return "norms over all heads of a token together cannot be split over";
  }
  const std::pair<const char*, int> split[] = {{"heads", config.heads},
                                               {"ffn_size", config.ffn_size},
                                               {"vocabulary_size", config.vocabulary_size},
                                               {"positions", config.positions},
                                               {"expert_ffn_size", config.experts.ffn_size},
                                               {"shared_ffn_size", config.experts.shared_ffn_size}};
  for (const auto& [name, value] : split) {
    if (value % tp != 0) return absl::StrCat(name, " ", value, " cannot be split over");
  }
  if (config.family->latent_attention && config.query_rank == 0) {
    const int64_t query = int64_t{config.heads / tp} * config.head_size * config.hidden_size;
    if (tp > 1 && query % kParameterAlignment != 0) {
      return absl::StrCat("latents of keys cannot be copied behind heads / tp_size x head_size x ",
                          "hidden_size = ", query, " values, which is no multiple of ",
                          kParameterAlignment, ", over");
    }
  }
  if (config.kv_heads % tp == 0) return "";
  if (tp % config.kv_heads != 0) {
    return absl::StrCat("kv_heads ", config.kv_heads, " can neither be split nor copied over");
  }
  const int64_t rows = int64_t{config.heads / tp} * config.head_size;
  const bool biases_fit = !config.family->qkv_biases || rows % kParameterAlignment == 0;
  const int64_t query = biases_fit ? rows * config.hidden_size : rows;
  if (query % kParameterAlignment == 0) return "";
  return absl::StrCat("kv_heads ", config.kv_heads, " cannot be copied behind heads / tp_size x ",
                      biases_fit ? "head_size x hidden_size = " : "head_size = ", query,
                      biases_fit ? " values" : " biases", ", which is no multiple of ",
                      kParameterAlignment, ", over");
}

absl::Status ValidateSplit(const ModelConfig& config, const Layout& layout) {
  const std::string why_not = WhyNotOver(config, layout.tp);
  if (why_not.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(why_not, " tp_size ", layout.tp, "; tp_size can be ",
                   NearestLegal(config.heads, layout.tp,
                                [&](int tp) { return WhyNotOver(config, tp).empty(); })));
}

}  // namespace

int WindowOf(const ModelConfig& config, int layer) {
  const int full_every = config.family->full_attention_every;
  return full_every > 0 && (layer + 1) % full_every == 0 ? 0 : config.sliding_window;
}

bool HasRope(const ModelConfig& config, int layer) {
  const int none_every = config.family->no_rope_every;
  return !config.family->learned_positions && (none_every == 0 || (layer + 1) % none_every != 0);
}

bool HasExperts(const ModelConfig& config, int layer) {
  return config.experts.count > 0 && layer >= config.experts.first_dense_layers;
}

absl::Status ValidateModel(const ModelConfig& config, const Layout& layout) {
  CONVENE_RETURN_IF_ERROR(ValidateShape(config));
  CONVENE_RETURN_IF_ERROR(ValidateExperts(config, layout));
  return ValidateSplit(config, layout);
}

}  // namespace convene::worker
