// Several files that appear together or not at all.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/store/file_lock.h"

namespace convene::worker {

// A file that is written once from its begin to its end, through a buffer.
class OutputFile {
 public:
  OutputFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status Append(absl::string_view bytes);
  // Writes the rest and fsyncs.
  absl::Status Close();
  const std::string& path() const { return path_; }

 private:
  absl::Status Flush();

  UniqueFd fd_;
  std::string path_;  // for error texts
  std::string buffer_;
};

// "`path`.partial.converted" until Commit: always the same name, so that the remains of a killed
// process go with the next one. Without Commit they are removed at the end of its life. Until then
// no other process may make a file of these names (LockOutput). A path that is a link means the
// file that it leads to. Not thread-safe.
class OutputFiles {
 public:
  OutputFiles() = default;
  ~OutputFiles();
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;

  // The pointer lasts as long as this object. Errors: LockOutput's, OpenFile's.
  absl::StatusOr<OutputFile*> Create(const std::string& path);
  // A name for a file that another one writes. Errors: LockOutput's.
  absl::StatusOr<std::string> Reserve(const std::string& path);
  // A file that must not be there when the new ones are.
  void RemoveAtCommit(const std::string& path) { stale_.push_back(path); }

  // Closes the files that Create made and gives all of them their names, in the order in which they
  // were created; of several, the last one's old file goes first of all.
  absl::Status Commit();

 private:
  struct Name {
    std::string path, temporary;
    FileLock lock;
  };
  std::vector<Name> names_;
  std::vector<std::unique_ptr<OutputFile>> files_;
  std::vector<std::string> stale_;
};

}  // namespace convene::worker
