// The tokens of a model, by text and by id.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {

// Read-only once filled; thread-safe then. Ids need not be dense; each token has its own.
class Vocabulary {
 public:
  // {token: id}; of equal tokens the last counts. InvalidArgument: no such object, ids far beyond
  // the number of tokens, or one id twice.
  static absl::StatusOr<Vocabulary> Read(const JsonNode& node);

  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // A token that is there already gets the new id; its id before is returned, and still has its
  // text.
  std::optional<int32_t> Add(absl::string_view token, int32_t id);

  std::optional<int32_t> Find(absl::string_view token) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }
  bool Has(int32_t id) const { return 0 <= id && id < id_count() && tokens_[id] != nullptr; }
  // Empty for an id that no token has.
  absl::string_view Token(int32_t id) const {
    return Has(id) ? absl::string_view(*tokens_[id]) : absl::string_view();
  }

  size_t size() const { return ids_.size(); }
  // One more than the largest id.
  int32_t id_count() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  std::deque<std::string> texts_;  // keeps their addresses
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  std::vector<const std::string*> tokens_;  // by id, null where there is none
};

}  // namespace convene::worker
