// The input files of a prepared token file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace convene::worker {

struct SourceFile {
  std::string path;  // absolute
  int64_t bytes = 0;
  int64_t modified_ns = 0;
  std::string command;  // of the shell, whose output is the content; "": the file's own bytes
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// The paths that a file's name or a glob pattern (with braces and ~) stands for, sorted by bytes. A
// pattern that is a file's name means that file, whatever characters it has. ** as a whole name in
// a pattern is folders of any depth, or none, as in Python's glob: without hidden ones, each folder
// once whatever links lead to it; such a pattern stands for files alone. NotFound: there is no such
// file. PermissionDenied: a directory of it cannot be read.
absl::StatusOr<std::vector<std::string>> ExpandPattern(const std::string& pattern);

// The files with content, in training order: patterns in the given order, the files of one sorted,
// each file once, without commands. InvalidArgument: no pattern, a directory, or all files empty.
// Else as ExpandPattern.
absl::StatusOr<std::vector<SourceFile>> ListSources(const std::vector<std::string>& patterns);

// OK if the open file `fd` is still what `source` says; FailedPrecondition if it changed.
absl::Status CheckUnchanged(int fd, const SourceFile& source);

// Whether another content stands under the path. A file that cannot be looked at may come back as
// it was: false.
bool IsChanged(const SourceFile& source);

absl::Status SourceChanged(const SourceFile& source);

}  // namespace convene::worker
