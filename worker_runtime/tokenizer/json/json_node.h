// A value in a JSON document together with its place, so that an error can name the place.
#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// Does not own the value. All errors are InvalidArgument and name the place, such as
// "pre_tokenizer.pretokenizers[1].behavior".
class JsonNode {
 public:
  JsonNode(const nlohmann::json* value, std::string place)
      : value_(value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& place() const { return place_; }

  // The member `key`, or nothing where it is absent or null, or this is no object.
  std::optional<JsonNode> Find(const char* key) const;
  absl::StatusOr<JsonNode> Get(const char* key) const;

  // The elements of an array.
  absl::StatusOr<std::vector<JsonNode>> Elements() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Bool() const;
  // A whole number in [0, largest].
  absl::StatusOr<int64_t> Number(int64_t largest) const;
  // Exactly one Unicode character.
  absl::StatusOr<std::string> Character() const;

  absl::StatusOr<std::string> GetString(const char* key) const;
  // The default where the member is absent or null.
  absl::StatusOr<bool> GetBool(const char* key, bool otherwise) const;

  absl::Status Error(absl::string_view complaint) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

// The feature `name` at `place` exists in Hugging Face's tokenizers, but we lack it.
absl::Status LacksFeature(absl::string_view place, absl::string_view name);

}  // namespace convene::worker
