// config.json from a shape.
#include <rapidjson/prettywriter.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/weights/hf_config.h"
#include "worker_runtime/weights/hf_config_keys.h"

namespace convene::worker {
namespace {

using rapidjson::Value;

using Writer = rapidjson::PrettyWriter<JsonBuffer>;

void WriteField(const Field& field, Writer& writer) {
  writer.Key(field.key);
  std::visit(
      [&](const auto* value) {
        using T = std::decay_t<decltype(*value)>;
        if constexpr (std::is_same_v<T, bool>) {
          writer.Bool(*value);
        } else if (*value == 0 && field.zero_is_null) {
          writer.Null();
        } else if (std::is_same_v<T, int> ||
                   (field.key == kQueryScalar && *value == std::floor(*value))) {
          writer.Int(static_cast<int>(*value));
        } else {
          writer.Double(*value);
        }
      },
      field.value);
}

void WritePartialRotary(const ModelConfig& config, Writer& writer) {
  if (!config.family->has_partial_rotary) return;
  double partial = config.rotary_size == 0 ? 1.0 : 1.0 * config.rotary_size / config.head_size;
  WriteField({kPartialRotary, &partial}, writer);
}

void WriteRope(ModelConfig config, absl::string_view key, bool is_scaled, double theta,
               Writer& writer) {
  writer.Key(key.data());
  writer.StartObject();
  writer.Key("rope_type");
  RopeScaling& scaling = config.rope_scaling;
  const char* type = "default";
  for (const auto& [name, kind] : kScalings) {
    if (is_scaled && kind == scaling.kind) type = name;
  }
  writer.String(type);
  // transformers 4 warns of it in rope_scaling.
  if (key == "rope_scaling") theta = 0;
  if (theta > 0) {
    WriteField({"rope_theta", &theta}, writer);
    WritePartialRotary(config, writer);
  }
  if (is_scaled) {
    WriteField({"factor", &scaling.factor}, writer);
    for (const Field& field : FieldsOf(&scaling)) {
      const double* const* real = std::get_if<double*>(&field.value);
      const bool* const* is_true = std::get_if<bool*>(&field.value);
      const bool is_default = (real != nullptr && **real == 0) || (is_true != nullptr && **is_true);
      if (!is_default) WriteField(field, writer);
    }
  }
  writer.EndObject();
}

// For transformers 4 and for 5.
void WriteRopes(const ModelConfig& config, Writer& writer) {
  const bool is_scaled = config.rope_scaling.factor != 1;
  ModelConfig copy = config;
  WriteField({"rope_theta", &copy.rope_theta}, writer);
  WritePartialRotary(config, writer);
  if (config.window_rope_theta > 0) {
    WriteField({"rope_local_base_freq", &copy.window_rope_theta}, writer);
    if (is_scaled) WriteRope(config, "rope_scaling", true, config.rope_theta, writer);
    writer.Key("rope_parameters");
    writer.StartObject();
    WriteRope(config, "sliding_attention", false, config.window_rope_theta, writer);
    WriteRope(config, "full_attention", is_scaled, config.rope_theta, writer);
    writer.EndObject();
    return;
  }
  if (is_scaled) WriteRope(config, "rope_scaling", true, config.rope_theta, writer);
  WriteRope(config, "rope_parameters", is_scaled, config.rope_theta, writer);
}

// Where layers differ.
void WriteKindsOfLayers(const ModelConfig& config, Writer& writer) {
  if (config.family->full_attention_every > 0) {
    writer.Key("layer_types");
    writer.StartArray();
    for (int i = 0; i < config.layers; ++i) writer.String(LayerType(config, i));
    writer.EndArray();
  }
  if (config.family->no_rope_every > 0) {
    writer.Key("no_rope_layers");
    writer.StartArray();
    for (int i = 0; i < config.layers; ++i) writer.Int(HasRope(config, i) ? 1 : 0);
    writer.EndArray();
  }
}

// The keys of which ReadHfConfig demands other values than transformers takes where they are
// absent.
absl::Status WriteFixed(const ConfigKeys& keys, Writer& writer) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument fixed, JsonDocument::Parse(keys.fixed));
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument defaults, JsonDocument::Parse(keys.defaults));
  for (const auto& member : fixed.root().value().GetObject()) {
    const Value* absent = MemberOf(defaults.root().value(), TextOf(member.name));
    if (absent == nullptr || *absent == member.value) continue;
    writer.Key(member.name.GetString());
    member.value.Accept(writer);
  }
  return absl::OkStatus();
}

void WriteTokens(const HfConfigExtras& extras, Writer& writer) {
  for (const auto& [key, token] : {std::pair{"bos_token_id", extras.begin_of_document},
                                   {"eos_token_id", extras.end_of_document},
                                   {"pad_token_id", -1}}) {
    writer.Key(key);
    token < 0 ? writer.Null() : writer.Int(token);
  }
}

}  // namespace

int GuessedLongestText(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  return scaling.factor == 1 ? 4096 : static_cast<int>(scaling.original_positions * scaling.factor);
}

absl::StatusOr<std::string> WriteHfConfig(const ModelConfig& config, const HfConfigExtras& extras) {
  const absl::Status lacks = absl::UnimplementedError(
      absl::StrCat("no config.json can say this shape: ", ShapeText(config)));
  if (config.family->keys.architecture == nullptr) return lacks;
  ModelConfig copy = config;
  const Family& family = *config.family;
  ExpertConfig& experts = copy.experts;
  if (copy.query_scalar == 0) copy.query_scalar = copy.head_size;
  const bool has_experts = experts.count > 0;
  if (!has_experts) experts.first_dense_layers = copy.layers;
  bool adds_balance_loss = has_experts && !family.router_groups && experts.balance_loss > 0;
  if (adds_balance_loss) experts.balance_loss /= BalanceLossUnit(config);
  int plain = copy.head_size - copy.rotary_size;
  int shared = experts.ffn_size > 0 ? experts.shared_ffn_size / experts.ffn_size : 0;
  JsonBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  writer.Key("architectures");
  writer.StartArray();
  writer.String(family.keys.architecture);
  writer.EndArray();
  for (const auto& [key, value] : {std::pair{"model_type", family.name},
                                   {family.keys.activation, ActivationName(family)},
                                   {"torch_dtype", extras.type}}) {
    writer.Key(key);
    writer.String(value);
  }
  for (const Field& field : FieldsOf(has_experts, &copy)) WriteField(field, writer);
  if (adds_balance_loss) WriteField({"output_router_logits", &adds_balance_loss}, writer);
  if (family.latent_attention) {
    WriteField({"qk_nope_head_dim", &plain}, writer);
    WriteField({"num_key_value_heads", &copy.heads}, writer);
  }
  if (family.router_groups && has_experts) {
    if (shared * experts.ffn_size != experts.shared_ffn_size) {
      return absl::UnimplementedError(
          absl::StrCat(lacks.message(), ": shared_ffn_size ", experts.shared_ffn_size,
                       " is no multiple of expert_ffn_size ", experts.ffn_size,
                       ", and config.json counts shared experts. --format safetensors writes the "
                       "tensors alone"));
    }
    WriteField({"n_shared_experts", &shared}, writer);
    if (!family.router_bias) WriteField({kSequenceLoss, &experts.balance_loss, false}, writer);
    writer.Key("topk_method");
    writer.String(RouterMethod(config));
  }
  if (family.keys.experts != nullptr && family.normalizes_router &&
      absl::StrContains(family.keys.defaults, "norm_topk_prob")) {
    writer.Key("norm_topk_prob");
    writer.Bool(true);
  }
  WriteKindsOfLayers(config, writer);
  if (!family.learned_positions) {
    int positions = extras.positions > 0 ? extras.positions : GuessedLongestText(config);
    WriteField({family.keys.positions, &positions}, writer);
    WriteRopes(config, writer);
  }
  CONVENE_RETURN_IF_ERROR(WriteFixed(family.keys, writer));
  WriteTokens(extras, writer);
  writer.EndObject();
  const absl::StatusOr<ModelConfig> read = ReadHfConfig(buffer.GetString());
  if (!read.ok()) return Annotate(read.status(), lacks.message());
  if (WeightsShapeText(*read) != WeightsShapeText(config)) return lacks;
  return absl::StrCat(buffer.GetString(), "\n");
}

}  // namespace convene::worker
