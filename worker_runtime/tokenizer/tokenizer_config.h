// The files beside a tokenizer that say more of it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace convene::worker {

// The text of the folder's tokenizer_config.json; empty where there is none. Special tokens that
// only the folder's special_tokens_map.json names ("eos_token") stand in it as well. A
// tokenizer_config.json that is no JSON object comes as it is, for its reader to say so.
// InvalidArgument: a special_tokens_map.json that is none. Else as tools/base/files.h.
absl::StatusOr<std::string> ReadTokenizerConfig(const std::string& folder);

}  // namespace convene::worker
