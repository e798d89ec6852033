// A key's value out of the proto: numbers within bounds, and words. For the files that fill in
// TrainOptions.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/message.h"

namespace convene::worker {

// Null where the message does not have the key.
inline const google::protobuf::FieldDescriptor* FieldThere(const google::protobuf::Message& config,
                                                           const std::string& key) {
  const auto* const field = config.GetDescriptor()->FindFieldByName(key);
  return config.GetReflection()->HasField(config, field) ? field : nullptr;
}

// The number of `key`, from `minimum` on. An absent key leaves `result` as it is. InvalidArgument:
// a number out of bounds.
inline absl::Status TakeInt(const google::protobuf::Message& config, const std::string& key,
                            int64_t minimum, int* result) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const auto* const field = FieldThere(config, key);
  if (field == nullptr) return absl::OkStatus();
  const int64_t value = config.GetReflection()->GetInt64(config, field);
  if (value < minimum || value > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " ", value, " must be a number from ", minimum, " to ", kMost));
  }
  *result = static_cast<int>(value);
  return absl::OkStatus();
}

template <typename Enum>
using Words = std::initializer_list<std::pair<const char*, Enum>>;

// The meaning of `text`, which is the value of `key`. InvalidArgument, with all words: none of
// them.
template <typename Enum>
absl::Status ToWord(const char* key, const std::string& text, Enum* value,
                    Words<std::common_type_t<Enum>> words) {
  for (const auto& [word, meaning] : words) {
    if (text != word) continue;
    *value = meaning;
    return absl::OkStatus();
  }
  const auto append = [](std::string* list, const auto& word) { list->append(word.first); };
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is \"", text, "\"; it can be ", absl::StrJoin(words, ", ", append)));
}

}  // namespace convene::worker
