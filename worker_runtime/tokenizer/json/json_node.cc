#include "worker_runtime/tokenizer/json/json_node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/json/characters.h"

namespace convene::worker {
namespace {

// Bytes of a name from the file that an error shows.
constexpr size_t kLongestName = 120;

}  // namespace

std::optional<JsonNode> JsonNode::Find(const char* key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return JsonNode(&*member, place_.empty() ? key : absl::StrCat(place_, ".", key));
}

absl::StatusOr<JsonNode> JsonNode::Get(const char* key) const {
  if (!value_->is_object()) return Error("should be an object");
  std::optional<JsonNode> member = Find(key);
  if (!member.has_value()) return Error(absl::StrCat("has no \"", key, "\""));
  return *std::move(member);
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::Elements() const {
  if (!value_->is_array()) return Error("should be an array");
  std::vector<JsonNode> elements;
  elements.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    elements.emplace_back(&(*value_)[i], absl::StrCat(place_, "[", i, "]"));
  }
  return elements;
}

absl::StatusOr<std::string> JsonNode::String() const {
  if (!value_->is_string()) return Error("should be a string");
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<bool> JsonNode::Bool() const {
  if (!value_->is_boolean()) return Error("should be true or false");
  return value_->get<bool>();
}

absl::StatusOr<int64_t> JsonNode::Number(int64_t largest) const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > static_cast<uint64_t>(largest)) {
    return Error(absl::StrCat("should be a whole number from 0 to ", largest));
  }
  return value_->get<int64_t>();
}

absl::StatusOr<std::string> JsonNode::Character() const {
  if (!value_->is_string()) return Error("should be a string");
  const auto& text = value_->get_ref<const std::string&>();
  if (text.empty() || CharacterAt(text, 0).bytes != text.size()) {
    return Error("should be one character");
  }
  return text;
}

absl::StatusOr<std::string> JsonNode::GetString(const char* key) const {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode member, Get(key));
  return member.String();
}

absl::StatusOr<bool> JsonNode::GetBool(const char* key, bool otherwise) const {
  const std::optional<JsonNode> member = Find(key);
  if (!member.has_value()) return otherwise;
  return member->Bool();
}

absl::Status JsonNode::Error(absl::string_view complaint) const {
  return absl::InvalidArgumentError(
      absl::StrCat(place_.empty() ? "the whole document" : place_, " ", complaint));
}

absl::Status LacksFeature(absl::string_view place, absl::string_view name) {
  return absl::UnimplementedError(absl::StrCat(
      place, ": Convene does not have the feature ", Utf8(name, kLongestName),
      " of Hugging Face's tokenizers; tokenize with theirs and give Convene the token file"));
}

}  // namespace convene::worker
