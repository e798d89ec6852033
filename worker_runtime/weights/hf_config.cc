#include "worker_runtime/weights/hf_config.h"

#include <rapidjson/writer.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/weights/hf_config_keys.h"

namespace convene::worker {
namespace {

using rapidjson::Value;

// Llama's, where a family's own defaults say nothing else.
constexpr char kDefaults[] = R"({"vocab_size": 32000, "hidden_size": 4096,
  "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": null, "head_dim": null, "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu", "initializer_range": 0.02,
  "tie_word_embeddings": false, "router_aux_loss_coef": 0.001})";

// These keys change the arithmetic: another value than this one is refused.
constexpr char kFixed[] =
    R"({"attention_bias": false, "mlp_bias": false, "use_sliding_window": false,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_layer_freq": 1,
  "scoring_func": "sigmoid", "rope_interleave": true,
  "rope_interleaved": false, "scale_attn_weights": true,
  "scale_attn_by_inverse_layer_idx": false, "add_cross_attention": false, "is_decoder": false,
  "is_encoder_decoder": false, "use_bidirectional_attention": false, "quantization_config": null,
  "pruned_heads": {}, "use_mrope": false})";

// These change nothing here: what is held in memory, how a training went, how text is made.
constexpr char kHarmless[] =
    R"(architectures attention_dropout attn_pdrop auto_map aux_loss_alpha bos_token_id
    cache_implementation chunk_size_feed_forward dtype embd_pdrop eos_token_id ep_size
    experts_implementation experts_per_token gradient_checkpointing hidden_act id2label
    initial_context_length is_llama_config label2id max_position_embeddings max_window_layers
    model_type n_ctx n_special num_nextn_predict_layers output_attentions output_hidden_states
    output_past output_router_logits pad_token_id predict_special_tokens pretraining_tp
    problem_type reorder_and_upcast_attn resid_pdrop residual_dropout return_dict router_jitter_noise seq_aux
    sep_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type
    summary_use_proj task_specific_params tokenizer_class torch_dtype torchscript
    transformers.js_config transformers_version unsloth_fixed unsloth_version use_bfloat16
    use_cache)";

// A foreign file's words are among these.
absl::Status Lacks(absl::string_view key, absl::string_view what) {
  return absl::UnimplementedError(Printable(absl::StrCat("\"", key, "\" ", what)));
}

// "; the nearest known one is ..."; "" where none is near.
std::string NearestKnown(absl::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = ClosestMatch(word, known);
  return nearest.empty() ? "" : absl::StrCat("; the nearest known one is \"", nearest, "\"");
}

// The families whose folders are read, sorted.
std::vector<std::string> FamilyNames() {
  std::set<std::string> names;
  for (const std::string& model : ModelNames()) {
    const Family& family = *NamedModel(model)->family;
    if (family.keys.architecture != nullptr) names.insert(family.name);
  }
  return {names.begin(), names.end()};
}

// As config.json has it, cut short.
std::string Shown(const Value& value) {
  JsonBuffer buffer;
  rapidjson::Writer<JsonBuffer> writer(buffer);
  value.Accept(writer);
  return Utf8(buffer.GetString(), 80);
}

absl::Status ReadField(const Value& value, absl::string_view key, const Field& field) {
  const bool is_null = value.IsNull();
  bool fits = is_null;
  if (int* const* number = std::get_if<int*>(&field.value)) {
    fits |= value.IsInt() && value.GetInt() >= 0;
    if (fits) **number = is_null ? 0 : value.GetInt();
  } else if (double* const* real = std::get_if<double*>(&field.value)) {
    fits |= value.IsNumber();
    if (fits) **real = is_null ? 0 : value.GetDouble();
  } else {
    fits = value.IsBool();
    if (fits) *std::get<bool*>(field.value) = value.GetBool();
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" has a value that cannot be used"));
}

// One config.json, with the defaults behind it.
class Reader {
 public:
  Reader(const Value& file, const Value& family, const Value& common)
      : levels_{&file, &family, &common} {}

  absl::StatusOr<ModelConfig> Read(const Family& family);

 private:
  // Also null values; null where no level has the key.
  const Value* Find(absl::string_view key) {
    seen_.insert(std::string(key));
    for (const Value* level : levels_) {
      if (const Value* value = MemberOf(*level, key); value != nullptr) return value;
      // transformers 5 writes this key of Qwen's under Mixtral's name.
      if (level == levels_[0] && key == "num_experts") {
        if (const Value* value = Find("num_local_experts"); value != nullptr) return value;
      }
    }
    return nullptr;
  }
  const Value* FindObject(absl::string_view key) {
    const Value* value = Find(key);
    return value != nullptr && value->IsObject() ? value : nullptr;
  }

  absl::Status ReadFields(const std::vector<Field>& fields);
  absl::Status ReadRope();
  absl::Status ReadScaling(const Value& rope);
  // Once head_size is known.
  absl::Status CheckPartialRotary();
  absl::Status ReadLatents();
  absl::Status ReadGroups();
  absl::Status ReadBalanceLoss();
  absl::Status CheckFixed();
  absl::Status LacksValue(absl::string_view key, const Value& value,
                          const std::string& known) const;
  absl::Status CheckLayers();
  absl::Status CheckNoRope();
  absl::Status CheckUnknown() const;

  const Value* const levels_[3];
  std::set<std::string> seen_;
  double partial_rotary_ = 1;
  ModelConfig config_;
};

absl::Status Reader::ReadFields(const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    if (const Value* value = Find(field.key); value != nullptr) {
      CONVENE_RETURN_IF_ERROR(ReadField(*value, field.key, field));
    }
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadScaling(const Value& rope) {
  RopeScaling& scaling = config_.rope_scaling;
  const Value* type = MemberOf(rope, "rope_type");
  if (type == nullptr) type = MemberOf(rope, "type");
  const absl::string_view name = type != nullptr && type->IsString() ? TextOf(*type) : "default";
  std::vector<Field> fields;
  if (name != "default") {
    if (!config_.family->keys.scales_rope) return LacksValue("rope_type", *type, "\"default\"");
    const auto* const known = std::find_if(std::begin(kScalings), std::end(kScalings),
                                           [&](const auto& kind) { return name == kind.first; });
    if (known == std::end(kScalings)) {
      const auto name_of = [](std::string* text, const auto& kind) { *text += kind.first; };
      return Lacks("rope_type",
                   absl::StrCat("is ", Shown(*type), ", and rotary positions here are ",
                                absl::StrJoin(kScalings, ", ", name_of),
                                " or default: this model cannot be used"));
    }
    scaling.kind = known->second;
    if (scaling.kind == RopeScalingKind::kYarn) {
      scaling.high_frequency_factor = 32;
      const Value* positions = Find(config_.family->keys.positions);
      if (positions->IsInt()) scaling.original_positions = positions->GetInt();
    }
    fields = FieldsOf(&scaling);
    fields.push_back({"factor", &scaling.factor});
  }
  fields.push_back({"rope_theta", &config_.rope_theta});
  fields.push_back({kPartialRotary, &partial_rotary_});
  for (const auto& member : rope.GetObject()) {
    const absl::string_view key = TextOf(member.name);
    if (&member.value == type || key == "type") continue;
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const Field& each) { return key == each.key; });
    if (field == fields.end()) {
      std::vector<std::string> known = {"rope_type"};
      for (const Field& each : fields) known.emplace_back(each.key);
      return Lacks(key,
                   absl::StrCat("of the rotary positions is not known", NearestKnown(key, known)));
    }
    CONVENE_RETURN_IF_ERROR(ReadField(member.value, key, *field));
  }
  if (name == "default" || (scaling.factor >= 1 && MemberOf(rope, "factor") != nullptr)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rotary positions of type ", name, " have no factor of 1 or more"));
}

absl::Status Reader::ReadRope() {
  CONVENE_RETURN_IF_ERROR(
      ReadFields({{"rope_theta", &config_.rope_theta}, {kPartialRotary, &partial_rotary_}}));
  const bool has_two = config_.family->has_window_theta;
  if (has_two) {
    CONVENE_RETURN_IF_ERROR(ReadFields({{"rope_local_base_freq", &config_.window_rope_theta}}));
  }
  const Value* scaling = FindObject("rope_scaling");
  const Value* parameters = FindObject("rope_parameters");
  if (parameters != nullptr && has_two) {
    // By the kind of layer.
    const Value* window = MemberOf(*parameters, "sliding_attention");
    const Value* full = MemberOf(*parameters, "full_attention");
    if (window != nullptr && window->IsObject()) {
      const Value* theta = MemberOf(*window, "rope_theta");
      const Value* type = MemberOf(*window, "rope_type");
      if (type != nullptr && *type != "default") return Lacks("sliding_attention", "is scaled");
      if (theta != nullptr) {
        CONVENE_RETURN_IF_ERROR(
            ReadField(*theta, "rope_theta", {"rope_theta", &config_.window_rope_theta}));
      }
    }
    if (window != nullptr || full != nullptr) {
      parameters = full != nullptr && full->IsObject() ? full : nullptr;
    }
  }
  // transformers 5 takes rope_scaling where both stand there.
  const Value* rope = scaling != nullptr ? scaling : parameters;
  if (rope != nullptr) CONVENE_RETURN_IF_ERROR(ReadScaling(*rope));
  if (has_two && config_.window_rope_theta == 0) config_.window_rope_theta = config_.rope_theta;
  return CheckPartialRotary();
}

absl::Status Reader::CheckPartialRotary() {
  if (partial_rotary_ == 1) return absl::OkStatus();
  if (!config_.family->has_partial_rotary) return Lacks(kPartialRotary, "is not 1");
  if (!(partial_rotary_ > 0 && partial_rotary_ < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: \"", kPartialRotary, "\" is not between 0 and 1"));
  }
  config_.rotary_size = static_cast<int>(config_.head_size * partial_rotary_);
  return absl::OkStatus();
}

absl::Status Reader::ReadLatents() {
  int plain = 0;
  CONVENE_RETURN_IF_ERROR(ReadFields({{"qk_nope_head_dim", &plain}}));
  config_.head_size = plain + config_.rotary_size;
  config_.kv_heads = config_.heads;
  return absl::OkStatus();
}

// Of a router with groups, and of the shared experts beside it.
absl::Status Reader::ReadGroups() {
  ExpertConfig& experts = config_.experts;
  int shared = 0;
  CONVENE_RETURN_IF_ERROR(ReadFields({{"n_shared_experts", &shared}}));
  if (shared < 0 || shared > std::numeric_limits<int>::max() / std::max(experts.ffn_size, 1)) {
    return absl::InvalidArgumentError("\"n_shared_experts\" is too large");
  }
  experts.shared_ffn_size = shared * experts.ffn_size;
  const Value* method = Find("topk_method");
  if (method != nullptr && *method == "greedy" && config_.family->groups_by_best) {
    experts.groups = experts.chosen_groups = 1;
  }
  if (method != nullptr && *method != RouterMethod(config_)) {
    return Lacks("topk_method", "is no way to choose experts that the family has");
  }
  // Where the folder does not say it: as in the papers (DeepSeek-V2, section 3.1.2; DeepSeek-V3,
  // section 4.2).
  experts.balance_loss = config_.family->router_bias ? 0.0001 : 0.003;
  if (!config_.family->router_bias) {
    CONVENE_RETURN_IF_ERROR(ReadFields({{kSequenceLoss, &experts.balance_loss}}));
  }
  experts.bias_rate = config_.family->router_bias ? 0.001 : 0;
  if (experts.first_dense_layers >= config_.layers) experts = {};
  return absl::OkStatus();
}

// transformers adds the loss only where it outputs the routers' logits, whatever the factor.
absl::Status Reader::ReadBalanceLoss() {
  bool is_added = false;
  CONVENE_RETURN_IF_ERROR(ReadFields({{"output_router_logits", &is_added}}));
  config_.experts.balance_loss *= is_added ? BalanceLossUnit(config_) : 0;
  return absl::OkStatus();
}

// 4-bit experts, which hf_folder unpacks.
bool IsUnpackedOnReading(const Value& quantization) {
  const Value* method = quantization.IsObject() ? MemberOf(quantization, "quant_method") : nullptr;
  return method != nullptr && *method == "mxfp4";
}

absl::Status Reader::CheckFixed() {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument own, JsonDocument::Parse(config_.family->keys.fixed));
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument common, JsonDocument::Parse(kFixed));
  for (const JsonDocument* const fixed : {&own, &common}) {
    for (const auto& member : fixed->root().value().GetObject()) {
      const absl::string_view key = TextOf(member.name);
      if (fixed == &common && MemberOf(own.root().value(), key) != nullptr) continue;
      const Value* value = Find(key);
      if (value == nullptr || *value == member.value) continue;
      if (value->IsNull() && !member.value.IsTrue()) continue;
      if (key == "quantization_config" && IsUnpackedOnReading(*value)) continue;
      return LacksValue(key, *value, Shown(member.value));
    }
  }
  const Value* activation = Find(config_.family->keys.activation);
  const char* const wanted = ActivationName(*config_.family);
  if (activation == nullptr || activation->IsNull() || *activation == wanted) {
    return absl::OkStatus();
  }
  return LacksValue(config_.family->keys.activation, *activation, absl::StrCat("\"", wanted, "\""));
}

absl::Status Reader::LacksValue(absl::string_view key, const Value& value,
                                const std::string& known) const {
  return Lacks(key, absl::StrCat("is ", Shown(value), ", and the family ", config_.family->name,
                                 " has only ", known,
                                 " here: the value changes the arithmetic, so that this model "
                                 "cannot be used"));
}

absl::Status Reader::CheckLayers() {
  const Value* pattern = Find("sliding_window_pattern");
  if (pattern != nullptr && pattern->IsInt() &&
      pattern->GetInt() != config_.family->full_attention_every) {
    return LacksValue("sliding_window_pattern", *pattern,
                      absl::StrCat(config_.family->full_attention_every));
  }
  // transformers reads another key, which this one only repeats (Gemma 2 9B).
  const Value* window = Find("sliding_window_size");
  if (window != nullptr && !(window->IsInt() && window->GetInt() == config_.sliding_window)) {
    return LacksValue("sliding_window_size", *window, absl::StrCat(config_.sliding_window));
  }
  const Value* types = Find("layer_types");
  if (types == nullptr || !types->IsArray()) return absl::OkStatus();
  bool is_ours = static_cast<int>(types->Size()) == config_.layers;
  for (int i = 0; is_ours && i < config_.layers; ++i) {
    is_ours = (*types)[i] == LayerType(config_, i);
  }
  return is_ours ? absl::OkStatus()
                 : Lacks("layer_types", "does not name the family's kinds of layers");
}

absl::Status Reader::CheckNoRope() {
  const int none_every = config_.family->no_rope_every;
  if (none_every == 0) return absl::OkStatus();
  const Value* turns = Find("no_rope_layers");
  const Value* interval = Find("no_rope_layer_interval");
  if (turns == nullptr || !turns->IsArray()) {
    if (interval == nullptr || (interval->IsInt() && interval->GetInt() == none_every)) {
      return absl::OkStatus();
    }
    return LacksValue("no_rope_layer_interval", *interval, absl::StrCat(none_every));
  }
  bool is_ours = static_cast<int>(turns->Size()) >= config_.layers;
  for (int i = 0; is_ours && i < config_.layers; ++i) {
    const Value& turn = (*turns)[i];
    is_ours = turn.IsInt() && turn.GetInt() == (HasRope(config_, i) ? 1 : 0);
  }
  return is_ours ? absl::OkStatus()
                 : Lacks("no_rope_layers", absl::StrCat("is not 0 for each ", none_every,
                                                        "th layer, and 1 for all others"));
}

absl::Status Reader::CheckUnknown() const {
  const std::set<std::string> harmless =
      absl::StrSplit(kHarmless, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  for (const auto& member : levels_[0]->GetObject()) {
    const absl::string_view key = TextOf(member.name);
    const bool is_harmless =
        absl::StartsWith(key, "_") || seen_.contains(std::string(key)) ||
        (key == "sliding_window" && !config_.family->has_window) ||
        (key == "original_max_position_embeddings" && config_.rope_scaling.factor == 1) ||
        // Sums of sizes that have keys of their own.
        ((key == "head_dim" || key == "qk_head_dim") && config_.family->latent_attention) ||
        harmless.contains(std::string(key));
    if (!is_harmless) {
      std::vector<std::string> known(seen_.begin(), seen_.end());
      known.insert(known.end(), harmless.begin(), harmless.end());
      return Lacks(
          key, absl::StrCat("is not known, and may change the arithmetic", NearestKnown(key, known),
                            ". Where the key does not, take it out of a copy of the file"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Reader::Read(const Family& family) {
  config_.family = &family;
  CONVENE_RETURN_IF_ERROR(ReadFields(FieldsOf(/*has_experts=*/true, &config_)));
  if (config_.ffn_size == 0) {
    config_.ffn_size =
        family.learned_positions ? 4 * config_.hidden_size : config_.experts.ffn_size;
  }
  if (config_.kv_heads == 0) config_.kv_heads = config_.heads;
  if (config_.head_size == 0 && config_.heads > 0) {
    config_.head_size = config_.hidden_size / config_.heads;
  }
  if (!family.learned_positions) CONVENE_RETURN_IF_ERROR(ReadRope());
  if (family.latent_attention) CONVENE_RETURN_IF_ERROR(ReadLatents());
  CONVENE_RETURN_IF_ERROR(family.router_groups ? ReadGroups() : ReadBalanceLoss());
  if (config_.query_scalar == config_.head_size) config_.query_scalar = 0;
  CONVENE_RETURN_IF_ERROR(CheckFixed());
  CONVENE_RETURN_IF_ERROR(CheckLayers());
  CONVENE_RETURN_IF_ERROR(CheckNoRope());
  CONVENE_RETURN_IF_ERROR(CheckUnknown());
  return config_;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfConfig(absl::string_view text) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument file, JsonDocument::Parse(text));
  const JsonNode root = file.root();
  if (!root.value().IsObject()) {
    return absl::InvalidArgumentError("it holds no JSON object");
  }
  CONVENE_ASSIGN_OR_RETURN(const std::string name, root.GetString("model_type"));
  const Family* const family = FamilyNamed(name);
  if (family == nullptr || family->keys.architecture == nullptr) {
    const std::vector<std::string> known = FamilyNames();
    return Lacks(
        "model_type",
        absl::StrCat("is \"", name, "\", and no family of models has this name",
                     NearestKnown(name, known), ". The families are ", absl::StrJoin(known, ", ")));
  }
  if (const std::optional<JsonNode> list = root.Find("architectures"); list.has_value()) {
    const Value& names = list->value();
    if (!names.IsArray() || names.Size() != 1 || names[0] != family->keys.architecture) {
      return Lacks("architectures",
                   absl::StrCat("is ", Shown(names), ", and the family ", name, " has only [\"",
                                family->keys.architecture, "\"] here"));
    }
  }
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument own, JsonDocument::Parse(family->keys.defaults));
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument common, JsonDocument::Parse(kDefaults));
  return Reader(root.value(), own.root().value(), common.root().value()).Read(*family);
}

absl::StatusOr<int> ReadLongestText(absl::string_view text) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument file, JsonDocument::Parse(text));
  const std::optional<JsonNode> positions = file.root().Find("max_position_embeddings");
  if (!positions.has_value() || !positions->value().IsInt()) return 0;
  return std::max(0, positions->value().GetInt());
}

}  // namespace convene::worker
