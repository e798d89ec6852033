// Files whose content is on the disk when the call returns, with hooks that let tests make the disk
// fail.
//
// Errors everywhere: the code ErrnoStatus() gives for the failed call, with the path and the call
// in the text.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/unique_fd.h"

namespace convene {

// open(2) with `flags` and O_CLOEXEC; `mode` is a new file's.
absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode = 0644);

absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes all of `content` at the descriptor's position, through short writes and EINTR. `path` is
// for the error text.
absl::Status WriteAll(int fd, absl::string_view content, const std::string& path);

absl::Status SyncFile(int fd, const std::string& path);

// Makes a rename or a new file in `directory` durable.
absl::Status SyncDirectory(const std::string& directory);

// `path` holds either its old content or all of the new one, even after a power cut: written to
// "`path`.tmp.<pid>", fsynced, renamed, directory fsynced. The temporary file is removed on
// failure.
absl::Status WriteFileAtomic(const std::string& path, absl::string_view content);

absl::Status RenameFile(const std::string& from, const std::string& to);

// Creates `path` and its parents (mode 0755); a directory that exists is fine.
absl::Status MakeDirectories(const std::string& path);

// Whether `path` is one, symbolic links followed; false where that cannot be found out.
bool IsFile(const std::string& path);
bool IsDirectory(const std::string& path);

// Names (not paths) in `directory`, sorted; "." and ".." left out.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& directory);

// Removes a file or a whole tree; a path that does not exist is fine.
absl::Status RemoveTree(const std::string& path);

// The part before the last '/', "." when there is none.
std::string ParentDirectory(const std::string& path);

// The calls that a test can make fail.
enum class FileOp { kOpen, kWrite, kSync, kRename };

// While it lives, `hook` is asked before every call of the kinds above and may return the error to
// give instead (0 = go on). Tests only; one at a time; not thread-safe against concurrent
// construction.
class ScopedFileFault {
 public:
  using Hook = std::function<int(FileOp op, const std::string& path)>;
  explicit ScopedFileFault(Hook hook);
  ~ScopedFileFault();
  ScopedFileFault(const ScopedFileFault&) = delete;
  ScopedFileFault& operator=(const ScopedFileFault&) = delete;
};

// The installed hook's answer (0 without one): for code that makes these calls itself.
int FileFault(FileOp op, const std::string& path);

}  // namespace convene
