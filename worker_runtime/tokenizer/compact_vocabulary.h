// PURE. The file beside a tokenizer's own that cuts its vocabulary (compact_tokenizer.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace convene::worker {

// Convene's own name and form: no other program has such vocabularies.
inline constexpr char kCompactVocabularyFile[] = "compact_vocabulary.json";

// {"original_ids": [...]}
std::string CompactVocabularyJson(absl::Span<const int32_t> original_ids);

// InvalidArgument: not such a text, with the place in it.
absl::StatusOr<std::vector<int32_t>> ReadCompactVocabulary(absl::string_view json);

}  // namespace convene::worker
