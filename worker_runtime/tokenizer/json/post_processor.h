// The "post_processor" of a tokenizer.json: the tokens around a whole document
// (tokenizers/src/processors).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {

struct AddedAround {
  std::vector<int32_t> prefix, suffix;
};

// `node`: the file's "post_processor", absent where that is null. InvalidArgument: among others an
// id that is not below `vocabulary_size`, with its place. Unimplemented: a template that does not
// have the text exactly once. REQUIRES: vocabulary_size > 0.
absl::StatusOr<AddedAround> ReadPostProcessor(const std::optional<JsonNode>& node,
                                              int vocabulary_size);

}  // namespace convene::worker
