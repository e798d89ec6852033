#include "worker_runtime/options/config_keys.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "tools/base/check.h"

namespace convene::worker {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const std::vector<ConfigKey>& ConfigKeys() {
  static const auto* const keys = [] {
    auto* result = new std::vector<ConfigKey>;
    const Descriptor* config = TrainConfig::descriptor();
    for (int i = 0; i < config->field_count(); ++i) {
      const FieldDescriptor* field = config->field(i);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        result->push_back({field, nullptr});
        continue;
      }
      const Descriptor* part = field->message_type();
      for (int j = 0; j < part->field_count(); ++j) result->push_back({part->field(j), field});
    }
    return result;
  }();
  return *keys;
}

const ConfigKey* FindConfigKey(absl::string_view name) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (name == key.field->name()) return &key;
  }
  return nullptr;
}

Message* MessageOf(const ConfigKey& key, TrainConfig* config) {
  if (key.parent == nullptr) return config;
  return config->GetReflection()->MutableMessage(config, key.parent);
}

std::optional<bool> BoolOf(absl::string_view text) {
  for (const char* word : {"true", "True", "TRUE"}) {
    if (text == word) return true;
  }
  for (const char* word : {"false", "False", "FALSE"}) {
    if (text == word) return false;
  }
  return std::nullopt;
}

absl::Status SetFromText(Message* message, const FieldDescriptor* field, const std::string& text) {
  const Reflection* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) {
        return absl::InvalidArgumentError("must be a whole number");
      }
      reflection->SetInt64(message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
        return absl::InvalidArgumentError("must be a number");
      }
      reflection->SetDouble(message, field, value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      const std::optional<bool> value = BoolOf(text);
      if (!value.has_value()) return absl::InvalidArgumentError("must be true or false");
      reflection->SetBool(message, field, *value);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_STRING:
      if (field->is_repeated()) {
        reflection->AddString(message, field, text);
      } else {
        reflection->SetString(message, field, text);
      }
      return absl::OkStatus();
    default:
      // The proto has no other types.
      CONVENE_CHECK(false);
  }
}

void Overlay(const TrainConfig& winner, TrainConfig* config) {
  std::vector<const FieldDescriptor*> fields;
  winner.GetReflection()->ListFields(winner, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) config->GetReflection()->ClearField(config, field);
  }
  config->MergeFrom(winner);
}

TrainConfig DefaultConfig() {
  TrainConfig config;
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string& text = key.doc().default_value();
    CONVENE_CHECK(text.empty() || SetFromText(MessageOf(key, &config), key.field, text).ok());
  }
  return config;
}

}  // namespace convene::worker
