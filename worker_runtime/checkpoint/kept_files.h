// The files of a run's tokenizer and of its chat template within a step's directory. A folder of
// their own holds them, whose name has a checksum of all: an attempt with other files writes beside
// those that a published manifest names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/manifest.h"

namespace convene::worker {

struct NamedFile {
  std::string name;  // may lead into a folder, "a/b.txt"
  std::string content;
};

// PURE. As the manifest names them.
std::vector<KeptFile> MarksOf(absl::Span<const NamedFile> files);

// PURE. The folder's name in the step's directory; "" without files.
std::string KeptDirectory(const std::vector<KeptFile>& files);

// Writes the files of this step, which are on the disk when the call returns. A file that another
// step of `directory` holds whole becomes a link to that one where the file system has links, so
// that a thousand checkpoints hold it once. Errors: tools/base/files.h's.
absl::Status WriteKeptFiles(const std::string& directory, int64_t step,
                            absl::Span<const NamedFile> files);

// Compares all files with their checksums. DataLoss for one that is missing or another one, with
// its path.
absl::Status CheckKeptFiles(const std::string& step_directory, const std::vector<KeptFile>& files);

}  // namespace convene::worker
