#include "worker_runtime/options/resolve_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/options/resolve_values.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {
namespace {

// Another type than the named model's starts from that type's usual bounds.
absl::Status ResolveScalingType(const ModelShape& shape, RopeScaling* scaling) {
  if (!shape.has_rope_scaling_type()) return absl::OkStatus();
  const RopeScalingKind named = scaling->kind;
  CONVENE_RETURN_IF_ERROR(ToWord("rope_scaling_type", shape.rope_scaling_type(), &scaling->kind,
                                 {{"llama3", RopeScalingKind::kLlama3},
                                  {"linear", RopeScalingKind::kLinear},
                                  {"yarn", RopeScalingKind::kYarn}}));
  if (scaling->kind == named) return absl::OkStatus();
  *scaling = {.factor = scaling->factor,
              .kind = scaling->kind,
              .high_frequency_factor = scaling->kind == RopeScalingKind::kYarn ? 32.0 : 4.0,
              .original_positions = scaling->original_positions};
  return absl::OkStatus();
}

// Refuses keys that would change nothing in a model of this family, or that it cannot have.
absl::Status CheckKeysOfFamily(const std::string& name, const ModelConfig& model,
                               const ModelShape& shape) {
  const Family& family = *model.family;
  constexpr char kLearned[] = "has learned positions, not rotary ones";
  constexpr char kLinear[] = "divides all rotary frequencies by one factor";
  const char* const of_all_ropes = family.learned_positions ? kLearned : nullptr;
  const char* const of_experts = model.experts.count > 0 ? nullptr : "has no experts";
  const char* const of_groups =
      family.router_groups ? of_experts : "has no router with groups of experts";
  const char* const of_llama3 =
      model.rope_scaling.kind == RopeScalingKind::kLinear ? kLinear : of_all_ropes;
  const char* const of_latents =
      family.latent_attention ? nullptr : "has no attention with latents";
  const bool is_scaled = model.rope_scaling.factor != 1 || shape.has_rope_scaling_factor();
  const struct {
    const char* key;
    const char* why_not;  // null: the key counts
  } keys[] = {
      {"rope_theta", of_all_ropes},
      {"rope_scaling_factor", of_all_ropes},
      {"rope_scaling_type", is_scaled ? of_all_ropes : "has no rope_scaling_factor above 1"},
      {"rope_low_frequency_factor", of_llama3},
      {"rope_high_frequency_factor", of_llama3},
      {"rope_original_positions", of_llama3},
      {"rotary_size", of_all_ropes},
      {"window_rope_theta",
       family.has_window_theta ? nullptr : "has one rope_theta for all its layers"},
      {"query_rank", of_latents},
      {"key_rank", of_latents},
      {"value_size", of_latents},
      {"kv_heads",
       family.latent_attention ? "makes a key and a value for each query head" : nullptr},
      {"positions",
       family.learned_positions ? nullptr : "has rotary positions, and no table of them"},
      {"sliding_window", family.has_window ? nullptr : "has no layers with a window"},
      {"query_scalar", family.has_caps ? nullptr : "scales scores by its head_size"},
      {"score_cap", family.has_caps ? nullptr : "has no soft caps"},
      {"logit_cap", family.has_caps ? nullptr : "has no soft caps"},
      {"experts", of_experts},
      {"experts_per_token", of_experts},
      {"expert_ffn_size", of_experts},
      {"shared_ffn_size", family.names.shared_up != nullptr ? of_experts : "has no shared experts"},
      {"first_dense_layers", of_experts},
      {"router_groups", of_groups},
      {"router_groups_per_token", of_groups},
      {"router_weight_scale", of_groups},
      {"router_balance_loss", of_experts},
      {"router_z_loss", of_experts},
      {"router_bias_rate", family.router_bias ? of_experts : "has no router with a bias"},
      {"expert_memory_factor", of_experts}};
  for (const auto& [key, why_not] : keys) {
    if (why_not == nullptr || FieldThere(shape, key) == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(key, " changes nothing: the model ", name, " ", why_not, "; leave it out"));
  }
  if (shape.has_rope_scaling_factor() && !family.keys.scales_rope) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rope_scaling_factor: files of the family ", family.name,
        " have no place for it, so nobody could use the trained model; leave it out, or choose "
        "another rope_theta"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ResolveModel(const std::string& name, const ModelShape& shape) {
  CONVENE_ASSIGN_OR_RETURN(ModelConfig model, FindShape(name));
  RopeScaling& scaling = model.rope_scaling;
  ExpertConfig& experts = model.experts;
  CONVENE_RETURN_IF_ERROR(ResolveScalingType(shape, &scaling));
  CONVENE_RETURN_IF_ERROR(CheckKeysOfFamily(name, model, shape));
  const struct {
    const char* key;
    int* size;
    int minimum = 1;
  } sizes[] = {{"sliding_window", &model.sliding_window, 0},
               {"experts", &experts.count},
               {"experts_per_token", &experts.chosen},
               {"expert_ffn_size", &experts.ffn_size},
               {"shared_ffn_size", &experts.shared_ffn_size, 0},
               {"first_dense_layers", &experts.first_dense_layers, 0},
               {"router_groups", &experts.groups},
               {"router_groups_per_token", &experts.chosen_groups},
               {"rotary_size", &model.rotary_size, 0},
               {"query_rank", &model.query_rank, 0},
               {"layers", &model.layers},
               {"hidden_size", &model.hidden_size},
               {"ffn_size", &model.ffn_size},
               {"heads", &model.heads},
               {"kv_heads", &model.kv_heads},
               {"head_size", &model.head_size},
               {"key_rank", &model.key_rank},
               {"value_size", &model.value_size},
               {"vocabulary_size", &model.vocabulary_size},
               {"positions", &model.positions},
               {"rope_original_positions", &scaling.original_positions}};
  for (const auto& [key, size, minimum] : sizes) {
    CONVENE_RETURN_IF_ERROR(TakeInt(shape, key, minimum, size));
  }
  if (model.family->latent_attention) model.kv_heads = model.heads;
  const bool has_one_theta = model.window_rope_theta == model.rope_theta;
  const std::pair<const char*, double*> numbers[] = {
      {"rope_theta", &model.rope_theta},
      {"window_rope_theta", &model.window_rope_theta},
      {"rope_scaling_factor", &scaling.factor},
      {"rope_low_frequency_factor", &scaling.low_frequency_factor},
      {"rope_high_frequency_factor", &scaling.high_frequency_factor},
      {"query_scalar", &model.query_scalar},
      {"score_cap", &model.score_cap},
      {"logit_cap", &model.logit_cap},
      {"router_weight_scale", &experts.weight_scale},
      {"router_balance_loss", &experts.balance_loss},
      {"router_z_loss", &experts.z_loss},
      {"router_bias_rate", &experts.bias_rate},
      {"expert_memory_factor", &experts.memory_factor},
      {"norm_epsilon", &model.norm_epsilon},
      {"initializer_range", &model.initializer_range}};
  for (const auto& [key, number] : numbers) {
    if (const auto* const field = FieldThere(shape, key); field != nullptr) {
      *number = shape.GetReflection()->GetDouble(shape, field);
    }
  }
  if (has_one_theta && !shape.has_window_rope_theta()) model.window_rope_theta = model.rope_theta;
  if (shape.has_tied_embeddings()) model.tied_embeddings = shape.tied_embeddings();
  return model;
}

}  // namespace convene::worker
