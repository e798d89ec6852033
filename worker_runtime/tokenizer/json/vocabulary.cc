#include "worker_runtime/tokenizer/json/vocabulary.h"

#include <algorithm>
#include <utility>

#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Real files leave few ids out; this much keeps the table by id small.
constexpr int64_t kIdsPerToken = 8;
constexpr int64_t kFreeIds = 100'000;

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Read(const JsonNode& node) {
  if (!node.value().IsObject()) return node.Error("should be an object of tokens and ids");
  const auto members = node.value().GetObject();
  Vocabulary vocabulary;
  vocabulary.ids_.reserve(members.MemberCount());
  const int64_t largest = static_cast<int64_t>(members.MemberCount()) * kIdsPerToken + kFreeIds;
  for (const auto& [token, id] : members) {
    const JsonNode id_node(&id, node.place());
    const absl::StatusOr<int64_t> number = id_node.Number(std::min<int64_t>(largest, INT32_MAX));
    if (!number.ok()) return Annotate(number.status(), "an id of a token in");
    // Of equal keys the last counts.
    const auto before = vocabulary.Add(TextOf(token), static_cast<int32_t>(*number));
    if (before.has_value() && *before != *number) vocabulary.tokens_[*before] = nullptr;
  }
  const auto ids = vocabulary.tokens_.size() -
                   std::count(vocabulary.tokens_.begin(), vocabulary.tokens_.end(), nullptr);
  if (ids != vocabulary.size()) return node.Error("has two tokens with one id");
  return vocabulary;
}

std::optional<int32_t> Vocabulary::Add(absl::string_view token, int32_t id) {
  std::optional<int32_t> before;
  texts_.emplace_back(token);
  const auto [known, is_new] = ids_.try_emplace(texts_.back(), id);
  if (!is_new) before = std::exchange(known->second, id);
  if (id >= id_count()) tokens_.resize(static_cast<size_t>(id) + 1, nullptr);
  tokens_[id] = &texts_.back();
  return before;
}

}  // namespace convene::worker
