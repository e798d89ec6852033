// The folder in which PrepareTokenFile keeps its token files: what is in it, which of it is in use,
// and what has to go.
//
// A process uses a token file from TokenFileUse::Begin() until the object or the process ends, in
// whatever way: the kernel holds a shared flock for it. A file in use never goes. For a file that
// is being made its lock file says so (file_lock.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "tools/base/environment.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

// $XDG_CACHE_HOME/convene or ~/.cache/convene; "" where neither variable is set.
std::string DefaultTokenCacheDirectory(const EnvironmentLookup& environment);

// The token file of a key (PrepareTokenFile).
std::string CachedTokenPath(const std::string& directory, uint64_t key);

class TokenFileUse {
 public:
  // Marks the file as used now. NotFound: it is not there (any more). DeadlineExceeded: another
  // process has held it for 10 s as if to remove it. Where the file system has no locks the file
  // counts as not in use. Else as OpenFile.
  static absl::StatusOr<TokenFileUse> Begin(const std::string& path, Clock* clock = &Clock::Real());

 private:
  explicit TokenFileUse(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Texts for people about what a token file of the cache is made from: best effort.
void NoteTokenFileSource(const std::string& path, const std::string& text);

// One token file, whole or not, with all files beside it.
struct CachedTokens {
  std::string path;
  int64_t bytes = 0;
  absl::Time used;        // last begun to be used, or written
  bool is_whole = false;  // false: a part; its maker is at work or died
  bool is_in_use = false;
  std::string source;  // what it is made from; "": nobody noted it
};

// The one that was not used for the longest time comes first. None where there is no such folder.
absl::StatusOr<std::vector<CachedTokens>> ListTokenCache(const std::string& directory);

struct TokenCacheBounds {
  // A file that nobody has used for longer goes. Infinite: files of any age stay; below 0: all go
  // that are not in use.
  absl::Duration unused_max = absl::Hours(30 * 24);
  // While all files together are larger, those go that nobody has used for the longest time.
  // nullopt: a quarter of the disk.
  std::optional<int64_t> bytes_max;
};

// A part that nobody has gone on with for so long goes, whatever the bounds.
inline constexpr absl::Duration kAbandonedAfter = absl::Hours(24);

struct SurplusTokens {
  CachedTokens tokens;
  std::string why;  // "not used for 31 days"
};

// PURE. The files that have to go, of a list as ListTokenCache gives it; nothing that is in use.
// REQUIRES: bytes_max has a value.
std::vector<SurplusTokens> SurplusOf(absl::Span<const CachedTokens> cache,
                                     const TokenCacheBounds& bounds, absl::Time now);

// As SurplusOf, of the folder as it is now.
absl::StatusOr<std::vector<SurplusTokens>> TokenCacheSurplus(const std::string& directory,
                                                             TokenCacheBounds bounds);

// Removes a token file and all beside it. False: it is in use (perhaps only now), or it is another
// user's. Should this process be killed meanwhile, a later call removes the rest.
bool RemoveCachedTokens(const std::string& path);

// Removes what is surplus, with a line in the log for each: the file, its bytes, why. Errors go to
// the log: no caller's work depends on it.
void PruneTokenCache(const std::string& directory, const TokenCacheBounds& bounds);

}  // namespace convene::worker
