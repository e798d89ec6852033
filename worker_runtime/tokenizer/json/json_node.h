// A JSON document, and its values together with their places, so that an error can name the place.
#pragma once

#include <rapidjson/document.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// Does not own the value. All errors are InvalidArgument and name the place, such as
// "pre_tokenizer.pretokenizers[1].behavior".
class JsonNode {
 public:
  JsonNode(const rapidjson::Value* value, std::string place)
      : value_(value), place_(std::move(place)) {}

  const rapidjson::Value& value() const { return *value_; }
  const std::string& place() const { return place_; }

  // The member `key`, of equal ones the last; or nothing where it is absent or null, or this is no
  // object. Its time grows with the number of members.
  std::optional<JsonNode> Find(absl::string_view key) const;
  absl::StatusOr<JsonNode> Get(absl::string_view key) const;

  // The elements of an array.
  absl::StatusOr<std::vector<JsonNode>> Elements() const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Bool() const;
  // A whole number in [0, largest].
  absl::StatusOr<int64_t> Number(int64_t largest) const;
  // Exactly one Unicode character.
  absl::StatusOr<std::string> Character() const;

  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<int64_t> GetNumber(absl::string_view key, int64_t largest) const;
  // The default where the member is absent or null.
  absl::StatusOr<bool> GetBool(absl::string_view key, bool otherwise) const;
  absl::StatusOr<std::string> GetCharacter(absl::string_view key) const;

  absl::Status Error(absl::string_view complaint) const;

 private:
  const rapidjson::Value* value_;
  std::string place_;
};

// REQUIRES: value.IsString().
inline absl::string_view TextOf(const rapidjson::Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

// Owns all values; may be moved.
class JsonDocument {
 public:
  // InvalidArgument: see ReadJson (json_reader.h).
  static absl::StatusOr<JsonDocument> Parse(absl::string_view text);

  // Its place is empty.
  JsonNode root() const { return {&values_, ""}; }

 private:
  std::string buffer_;  // the texts of values_
  rapidjson::Document values_;
};

// Calls add(type, part) for `node`, or for each part within it where its "type" is "Sequence",
// whose parts are its member `list`, in order. InvalidArgument: no "type", or Sequences nested too
// deep.
template <typename Add>
absl::Status ForEachPart(const JsonNode& node, absl::string_view list, const Add& add,
                         int depth = 0) {
  // Real files have one Sequence.
  constexpr int kLargestDepth = 16;
  const absl::StatusOr<std::string> type = node.GetString("type");
  if (!type.ok()) return type.status();
  if (*type != "Sequence") return add(*type, node);
  if (depth == kLargestDepth) return node.Error("is nested too deep");
  const absl::StatusOr<JsonNode> member = node.Get(list);
  if (!member.ok()) return member.status();
  const absl::StatusOr<std::vector<JsonNode>> parts = member->Elements();
  if (!parts.ok()) return parts.status();
  for (const JsonNode& part : *parts) {
    const absl::Status status = ForEachPart(part, list, add, depth + 1);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The feature `name` at `place` exists in Hugging Face's tokenizers, but we lack it.
absl::Status LacksFeature(absl::string_view place, absl::string_view name);

}  // namespace convene::worker
