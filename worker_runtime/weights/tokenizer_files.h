// The files that a tokenizer and its chat template are, to go with weights elsewhere.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/kept_files.h"

namespace convene::worker {

// `path`: as LoadTokenizer takes it. A folder that gets these files is the same tokenizer with the
// same chat template; the name of one may lead into a folder of it. Sorted by names. End tokens
// that the folder's config.json alone names stand in a generation_config.json. Of a file these are
// it and the configuration beside it; of a GGUF file those that it was made from; of byte there are
// none. InvalidArgument: such a file that is no JSON. Errors else: ReadGgufTokenizer's, and those
// of tools/base/files.h.
absl::StatusOr<std::vector<NamedFile>> TokenizerFiles(const std::string& path);

// TokenizerFiles for a folder that other programs read: none where the vocabulary is a compact one,
// which they do not know; they would take the whole tokenizer's ids for the model's.
absl::StatusOr<std::vector<NamedFile>> TokenizerFilesForOthers(const std::string& path);

// Writes such a file into a folder, and makes the one that its name leads into.
absl::Status WriteNamedFile(const std::string& folder, const NamedFile& file);

}  // namespace convene::worker
