// The keys of the trainer's configuration: found in the proto's descriptor, described in one table
// beside it. YAML, flags and --help all come from here; a key that is added to the proto needs one
// row and nothing else (a test compares the two).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/train_config.pb.h"

namespace convene::worker {

struct ConfigKeyRow {
  const char* key;            // as in the proto
  const char* group;          // heading in --help; rows of one group stand together
  const char* default_value;  // "" = none: required, derived, or the named model's own value
  const char* help;
};

// In --help's order.
const std::vector<ConfigKeyRow>& ConfigKeyTable();

// A key that takes a value: a field of TrainConfig, or of its ModelShape (then `parent` is the
// field that holds it, else null).
struct ConfigKey {
  const google::protobuf::FieldDescriptor* field = nullptr;
  const google::protobuf::FieldDescriptor* parent = nullptr;
};

// All of them, in the proto's order. Names are unique across both messages.
const std::vector<ConfigKey>& ConfigKeys();

// Null when there is none. `name` is as in the proto, with underscores.
const ConfigKey* FindConfigKey(absl::string_view name);

// The message of `config` that `key` is a field of; made when it is absent.
google::protobuf::Message* MessageOf(const ConfigKey& key, TrainConfig* config);

// Sets `field` of `message` from its text form; a repeated field gets one more value.
// InvalidArgument names only the required form ("must be a whole number"): the caller adds the
// place. Numbers must be finite.
absl::Status SetFromText(google::protobuf::Message* message,
                         const google::protobuf::FieldDescriptor* field, const std::string& text);

// Fields set in `winner` replace those of `config`; a repeated field is replaced whole, a message
// field by field.
void Overlay(const TrainConfig& winner, TrainConfig* config);

// The default values of the table.
TrainConfig DefaultConfig();

}  // namespace convene::worker
