// Cuts the vocabulary of a finished token file to the tokens that it uses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Writes `whole`, whose ids are those of `tokenizer` and which was made with `info`, to `path` with
// the compact vocabulary of all ids that occur and of IndispensableIds. The bytes depend on the
// input alone. Reads `whole` twice, and calls `progress`, unless it is empty, with the tokens read
// of both times. After an error nothing is left under the name.
//
// DataLoss: an id outside the vocabulary. Else as IndispensableIds and TokenFileWriter.
absl::Status WriteCompact(const TokenSource& whole, const Tokenizer& tokenizer, TokenFileInfo info,
                          const std::string& path,
                          const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace convene::worker
