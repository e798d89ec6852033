// Token files of letters, for tests of `prepare`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/prepare.h"

namespace convene::worker::testing {

using convene::testing::TempDir;

void Put(const std::string& path, const std::string& text);

// By LetterTokenizer, on two threads, with a journal after each chunk. `patterns`: within `dir`.
PrepareOptions LetterOptions(const TempDir& dir, const std::vector<std::string>& patterns);

// All tokens as text, "|" for the end of a document.
std::string TextOf(const std::string& path);

// The text of a file that is made with these options, "a.bin".
std::string Made(const TempDir& dir, const PrepareOptions& options,
                 PrepareSummary* summary = nullptr);

// The names in `directory` that hold `part`.
std::vector<std::string> FilesWith(const std::string& directory, const std::string& part);

// PrepareTokenFile with LetterOptions, in the cache "cache".
TokenCache CacheOf(const TempDir& dir);
absl::StatusOr<std::string> Cached(const TempDir& dir, const std::vector<std::string>& patterns);

}  // namespace convene::worker::testing
