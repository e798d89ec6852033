#include "worker_runtime/weights/peft_config.h"

#include <rapidjson/prettywriter.h>

#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr int64_t kRankMax = 1 << 20;

// Whether a key says nothing: absent, null, false, empty.
bool IsEmpty(const rapidjson::Value& value) {
  return value.IsNull() || value.IsFalse() || (value.IsObject() && value.ObjectEmpty()) ||
         (value.IsArray() && value.Empty()) || (value.IsString() && value.GetStringLength() == 0);
}

absl::Status RefuseOtherKinds(const JsonNode& root) {
  constexpr const char* kKeys[] = {"use_dora",
                                   "use_qalora",
                                   "rank_pattern",
                                   "alpha_pattern",
                                   "modules_to_save",
                                   "lora_bias",
                                   "layer_replication",
                                   "target_parameters",
                                   "megatron_config",
                                   "trainable_token_indices",
                                   "alora_invocation_tokens"};
  for (const char* const key : kKeys) {
    const std::optional<JsonNode> member = root.Find(key);
    if (!member.has_value() || IsEmpty(member->value())) continue;
    return absl::UnimplementedError(
        absl::StrCat("\"", key,
                     "\" is set, and adapters here are plain LoRA: one rank and one "
                     "alpha for all matrices, nothing else that learns. Merge it with PEFT "
                     "(merge_and_unload), and give the folder that this makes"));
  }
  const std::optional<JsonNode> bias = root.Find("bias");
  if (!bias.has_value()) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const std::string word, bias->String());
  if (word == "none") return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "\"bias\" is \"", word, "\", and biases do not learn beside adapters here; merge it first"));
}

// PiSSA, OLoRA, CorDA and LoftQ change the base before the adapters learn, and PEFT does it again
// whenever it loads them: beside the base as it lies in its folder they make another model.
absl::Status RefuseChangedBase(const JsonNode& root) {
  const std::optional<JsonNode> beginning = root.Find("init_lora_weights");
  if (!beginning.has_value() || !beginning->value().IsString()) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const std::string name, beginning->String());
  for (const char* const plain : {"gaussian", "eva", "orthogonal"}) {
    if (absl::EqualsIgnoreCase(name, plain)) return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "\"init_lora_weights\" is \"", Utf8(name, 40),
      "\", and such adapters do not stand beside the base as it is. Let PEFT save them as plain "
      "LoRA (save_pretrained with path_initial_model_for_weight_conversion), or merge them "
      "(merge_and_unload) and give the folder that this makes"));
}

}  // namespace

absl::StatusOr<PeftConfig> ReadPeftConfig(absl::string_view text) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(text));
  const JsonNode root = document.root();
  CONVENE_ASSIGN_OR_RETURN(const std::string type, root.GetString("peft_type"));
  if (type != "LORA") {
    return absl::UnimplementedError(
        absl::StrCat("\"peft_type\" is \"", type, "\"; adapters here are LORA's"));
  }
  CONVENE_RETURN_IF_ERROR(RefuseOtherKinds(root));
  CONVENE_RETURN_IF_ERROR(RefuseChangedBase(root));
  PeftConfig config;
  CONVENE_ASSIGN_OR_RETURN(const int64_t rank, root.GetNumber("r", kRankMax));
  if (rank < 1) return root.Error("\"r\" must be at least 1");
  config.adapter.rank = static_cast<int>(rank);
  config.adapter.alpha = 8;  // PEFT's default
  if (const auto alpha = root.Find("lora_alpha"); alpha.has_value()) {
    if (!alpha->value().IsNumber() || !(alpha->value().GetDouble() > 0)) {
      return alpha->Error("must be a number above 0");
    }
    config.adapter.alpha = alpha->value().GetDouble();
  }
  if (const auto dropout = root.Find("lora_dropout"); dropout.has_value()) {
    const rapidjson::Value& value = dropout->value();
    if (!value.IsNumber() || !(value.GetDouble() >= 0 && value.GetDouble() < 1)) {
      return dropout->Error("must be a number from 0 to below 1");
    }
    config.adapter.dropout = value.GetDouble();
  }
  CONVENE_ASSIGN_OR_RETURN(config.adapter.rank_stabilized, root.GetBool("use_rslora", false));
  if (const auto base = root.Find("base_model_name_or_path"); base.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(config.base, base->String());
  }
  return config;
}

std::string WritePeftConfig(const PeftConfig& config, const std::vector<std::string>& targets,
                            bool turned_matrices) {
  JsonBuffer buffer;
  rapidjson::PrettyWriter<JsonBuffer> writer(buffer);
  writer.SetIndent(' ', 2);
  const auto string = [&](const char* key, const std::string& value) {
    writer.Key(key);
    writer.String(value.c_str());
  };
  const auto boolean = [&](const char* key, bool value) {
    writer.Key(key);
    writer.Bool(value);
  };
  writer.StartObject();
  string("peft_type", "LORA");
  string("task_type", "CAUSAL_LM");
  string("base_model_name_or_path", config.base);
  writer.Key("r");
  writer.Int(config.adapter.rank);
  writer.Key("lora_alpha");
  const double alpha = config.adapter.alpha;
  alpha == std::floor(alpha) ? writer.Int64(static_cast<int64_t>(alpha)) : writer.Double(alpha);
  writer.Key("lora_dropout");
  writer.Double(config.adapter.dropout);
  boolean("use_rslora", config.adapter.rank_stabilized);
  boolean("use_dora", false);
  string("bias", "none");
  boolean("fan_in_fan_out", turned_matrices);
  boolean("inference_mode", true);
  writer.Key("target_modules");
  writer.StartArray();
  for (const std::string& target : targets) writer.String(target.c_str());
  writer.EndArray();
  writer.EndObject();
  return absl::StrCat(buffer.GetString(), "\n");
}

}  // namespace convene::worker
