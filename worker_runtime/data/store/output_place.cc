#include "worker_runtime/data/store/output_place.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"

namespace convene::worker {

std::string PlaceOfOutput(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path place = std::filesystem::canonical(path, error);
  if (!error) return place.string();
  if (error != std::errc::no_such_file_or_directory) return path;
  const std::filesystem::path target = std::filesystem::read_symlink(path, error);
  return PlaceOfOutput((std::filesystem::path(ParentDirectory(path)) / target).string());
}

std::string LockPathOf(const std::string& path) { return absl::StrCat(path, ".lock"); }

absl::StatusOr<FileLock> LockOutput(const std::string& path) {
  absl::StatusOr<FileLock> lock =
      FileLock::Take(LockPathOf(path), {.silence_max = absl::ZeroDuration()});
  if (absl::IsDeadlineExceeded(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data: another process is making ", path, " just now: ", lock.status().message(),
        "; wait for its end, or name another output"));
  }
  if (lock.ok()) return lock;
  return absl::Status(
      lock.status().code(),
      absl::StrCat("data: no file can be made beside the output (", lock.status().message(),
                   "): see to the right to write and the room in ", ParentDirectory(path),
                   ", or name another output"));
}

}  // namespace convene::worker
