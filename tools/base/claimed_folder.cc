#include "tools/base/claimed_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene {
namespace {

// The most remains that one sweep removes, and the most entries that it looks at.
constexpr int kMostSwept = 64;
constexpr int kMostLookedAt = 10'000;

// True when the process of `folder` was killed, and the folder is gone now.
bool SweepOne(const std::string& folder,
              const std::function<void(const std::string& folder)>& remove) {
  struct stat info;
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    return false;
  }
  const UniqueFd lock(
      open(absl::StrCat(folder, kClaimName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  // Its process was killed before it had made the lock, or while it cleaned up. A living process
  // that is about to make the lock tries again.
  if (!lock.valid()) return errno == ENOENT && rmdir(folder.c_str()) == 0;
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return false;
  remove(folder);
  return true;
}

}  // namespace

absl::StatusOr<UniqueFd> ClaimFolder(const std::string& folder) {
  const std::string path = absl::StrCat(folder, kClaimName);
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid() || flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return ErrnoStatus(errno, absl::StrCat("lock ", path));
  }
  return lock;
}

void SweepFolders(const std::string& parent, absl::string_view prefix,
                  const std::function<void(const std::string& folder)>& remove) {
  DIR* const entries = opendir(parent.c_str());
  if (entries == nullptr) return;
  int swept = 0;
  for (int looked_at = 0; looked_at < kMostLookedAt && swept < kMostSwept; ++looked_at) {
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) break;
    const absl::string_view name(entry->d_name);
    if (!absl::StartsWith(name, prefix)) continue;
    if (SweepOne(absl::StrCat(parent, "/", name), remove)) ++swept;
  }
  closedir(entries);
}

}  // namespace convene
