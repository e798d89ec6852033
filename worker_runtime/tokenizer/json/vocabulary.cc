#include "worker_runtime/tokenizer/json/vocabulary.h"

#include <algorithm>

#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Real files leave few ids out; this much keeps the table by id small.
constexpr int64_t kIdsPerToken = 8;
constexpr int64_t kFreeIds = 100'000;

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Read(const JsonNode& node) {
  if (!node.value().is_object()) return node.Error("should be an object of tokens and ids");
  Vocabulary vocabulary;
  vocabulary.ids_.reserve(node.value().size());
  const int64_t largest = static_cast<int64_t>(node.value().size()) * kIdsPerToken + kFreeIds;
  for (const auto& [token, id] : node.value().items()) {
    const JsonNode id_node(&id, node.place());
    const absl::StatusOr<int64_t> number = id_node.Number(std::min<int64_t>(largest, INT32_MAX));
    if (!number.ok()) return Annotate(number.status(), "an id of a token in");
    vocabulary.Add(token, static_cast<int32_t>(*number));
  }
  const auto ids = vocabulary.tokens_.size() -
                   std::count(vocabulary.tokens_.begin(), vocabulary.tokens_.end(), nullptr);
  if (ids != vocabulary.size()) return node.Error("has two tokens with one id");
  return vocabulary;
}

void Vocabulary::Add(absl::string_view token, int32_t id) {
  texts_.emplace_back(token);
  ids_.insert_or_assign(absl::string_view(texts_.back()), id);
  if (id >= id_count()) tokens_.resize(static_cast<size_t>(id) + 1, nullptr);
  tokens_[id] = &texts_.back();
  longest_token_bytes_ = std::max(longest_token_bytes_, token.size());
}

}  // namespace convene::worker
