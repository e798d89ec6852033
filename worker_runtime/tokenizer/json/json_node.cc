#include "worker_runtime/tokenizer/json/json_node.h"

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/json_reader.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Bytes of a name from the file that an error shows.
constexpr size_t kLongestName = 120;

}  // namespace

std::optional<JsonNode> JsonNode::Find(absl::string_view key) const {
  if (!value_->IsObject()) return std::nullopt;
  for (auto member = value_->MemberEnd(); member != value_->MemberBegin();) {
    --member;
    if (TextOf(member->name) != key) continue;
    if (member->value.IsNull()) return std::nullopt;
    return JsonNode(&member->value, absl::StrCat(place_, place_.empty() ? "" : ".", key));
  }
  return std::nullopt;
}

absl::StatusOr<JsonNode> JsonNode::Get(absl::string_view key) const {
  if (!value_->IsObject()) return Error("should be an object");
  std::optional<JsonNode> member = Find(key);
  if (!member.has_value()) return Error(absl::StrCat("has no \"", key, "\""));
  return *std::move(member);
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->IsArray()) return Error("should be an array");
  std::vector<JsonNode> elements;
  elements.reserve(value_->Size());
  for (const rapidjson::Value& element : value_->GetArray()) {
    elements.emplace_back(&element, absl::StrCat(place_, "[", elements.size(), "]"));
  }
  return elements;
}

absl::StatusOr<std::string> JsonNode::String() const {
  if (!value_->IsString()) return Error("should be a string");
  return std::string(TextOf(*value_));
}

absl::StatusOr<bool> JsonNode::Bool() const {
  if (!value_->IsBool()) return Error("should be true or false");
  return value_->GetBool();
}

absl::StatusOr<int64_t> JsonNode::Number(int64_t largest) const {
  if (!value_->IsUint64() || value_->GetUint64() > static_cast<uint64_t>(largest)) {
    return Error(absl::StrCat("should be a whole number from 0 to ", largest));
  }
  return value_->GetInt64();
}

absl::StatusOr<std::string> JsonNode::Character() const {
  if (!value_->IsString()) return Error("should be a string");
  if (!IsOneCharacter(TextOf(*value_))) return Error("should be one character");
  return String();
}

absl::StatusOr<std::string> JsonNode::GetString(absl::string_view key) const {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode member, Get(key));
  return member.String();
}

absl::StatusOr<int64_t> JsonNode::GetNumber(absl::string_view key, int64_t largest) const {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode member, Get(key));
  return member.Number(largest);
}

absl::StatusOr<bool> JsonNode::GetBool(absl::string_view key, bool otherwise) const {
  const std::optional<JsonNode> member = Find(key);
  if (!member.has_value()) return otherwise;
  return member->Bool();
}

absl::StatusOr<std::string> JsonNode::GetCharacter(absl::string_view key) const {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode member, Get(key));
  return member.Character();
}

absl::Status JsonNode::Error(absl::string_view complaint) const {
  return absl::InvalidArgumentError(
      absl::StrCat(place_.empty() ? "the whole document" : place_, " ", complaint));
}

absl::StatusOr<JsonDocument> JsonDocument::Parse(absl::string_view text) {
  JsonDocument document;
  absl::Status status;
  const auto fill = [&](rapidjson::Document& values) {
    status = ReadJson(text, &document.buffer_, &values);
    return status.ok();
  };
  document.values_.Populate(fill);
  if (!status.ok()) return status;
  return document;
}

absl::Status LacksFeature(absl::string_view place, absl::string_view name) {
  return absl::UnimplementedError(absl::StrCat(
      place, ": Convene does not have the feature ", Utf8(name, kLongestName),
      " of Hugging Face's tokenizers; tokenize with theirs and give Convene the token file"));
}

}  // namespace convene::worker
