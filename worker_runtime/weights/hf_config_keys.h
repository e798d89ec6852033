// The keys of a config.json and the numbers of a ModelConfig that they say, for its reader and its
// writer.
#pragma once

#include <rapidjson/document.h>

#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// transformers 5 takes no other number than a whole one.
inline constexpr char kQueryScalar[] = "query_pre_attn_scalar";

// The share of a head that turns.
inline constexpr char kPartialRotary[] = "partial_rotary_factor";

// The factor of the loss that evens the experts' load in each sequence, as RouterPenalty has it
// (modeling_deepseek.py of DeepSeek-V2's folders, MoEGate). Folders of DeepSeek-V3 have the key
// too, and their code adds no such loss.
inline constexpr char kSequenceLoss[] = "aux_loss_alpha";

// A key, and the number of a ModelConfig that it says.
struct Field {
  const char* key;
  std::variant<int*, double*, bool*> value;
  bool zero_is_null = true;  // and null is zero
};

inline constexpr std::pair<const char*, RopeScalingKind> kScalings[] = {
    {"llama3", RopeScalingKind::kLlama3},
    {"linear", RopeScalingKind::kLinear},
    {"yarn", RopeScalingKind::kYarn}};

// The member; null where there is none.
const rapidjson::Value* MemberOf(const rapidjson::Value& object, absl::string_view key);

// `has_experts`: with those of the experts, where the family can have these.
std::vector<Field> FieldsOf(bool has_experts, ModelConfig* config);

// A rope_scaling's or rope_parameters' numbers beside its type and factor.
std::vector<Field> FieldsOf(RopeScaling* scaling);

const char* ActivationName(const Family& family);

// DeepSeek's word for how a router chooses.
const char* RouterMethod(const ModelConfig& config);

// Our factor of the loss that evens the experts' load, of transformers' as 1. That loss takes the
// rows of all layers together, and does not divide by the chosen experts; ours (ops/router.h) is
// each layer's, and divides. Of a family without router_groups.
double BalanceLossUnit(const ModelConfig& config);

const char* LayerType(const ModelConfig& config, int layer);

}  // namespace convene::worker
