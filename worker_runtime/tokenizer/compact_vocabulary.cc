#include "worker_runtime/tokenizer/compact_vocabulary.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr char kIds[] = "original_ids";

}  // namespace

std::string CompactVocabularyJson(absl::Span<const int32_t> original_ids) {
  return absl::StrCat("{\"", kIds, "\": [", absl::StrJoin(original_ids, ", "), "]}\n");
}

absl::StatusOr<std::vector<int32_t>> ReadCompactVocabulary(absl::string_view json) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(json));
  CONVENE_ASSIGN_OR_RETURN(const JsonNode list, document.root().Get(kIds));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, list.Elements());
  std::vector<int32_t> ids;
  for (const JsonNode& element : elements) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t id, element.Number(std::numeric_limits<int32_t>::max()));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace convene::worker
