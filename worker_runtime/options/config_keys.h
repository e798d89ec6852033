// The keys of the trainer's configuration, as the proto's descriptor has them: YAML, flags and
// --help all come from there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/train_config.pb.h"

namespace convene::worker {

// A key that takes a value: a field of TrainConfig, or of its ModelShape (then `parent` is the
// field that holds it, else null).
struct ConfigKey {
  const google::protobuf::FieldDescriptor* field = nullptr;
  const google::protobuf::FieldDescriptor* parent = nullptr;

  const KeyDoc& doc() const { return field->options().GetExtension(key_doc); }
};

// All of them, in the order of --help. Names are unique across both messages.
const std::vector<ConfigKey>& ConfigKeys();

// Null when there is none. `name` is as in the proto, with underscores.
const ConfigKey* FindConfigKey(absl::string_view name);

// The message of `config` that `key` is a field of; made when it is absent.
google::protobuf::Message* MessageOf(const ConfigKey& key, TrainConfig* config);

// "true" or "false", also as YAML's core schema writes them (True, TRUE); nullopt for another text.
std::optional<bool> BoolOf(absl::string_view text);

// Sets `field` of `message` from its text form; a repeated field gets one more value.
// InvalidArgument names only the required form ("must be a whole number"): the caller adds the
// place. Numbers must be finite.
absl::Status SetFromText(google::protobuf::Message* message,
                         const google::protobuf::FieldDescriptor* field, const std::string& text);

// Fields set in `winner` replace those of `config`; a repeated field is replaced whole, a message
// field by field.
void Overlay(const TrainConfig& winner, TrainConfig* config);

// The default values that the proto names.
TrainConfig DefaultConfig();

}  // namespace convene::worker
