#include "worker_runtime/data/prepare/token_cache.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/store/file_lock.h"

namespace convene::worker {
namespace {

constexpr absl::string_view kPrefix = "tokens_";
constexpr absl::string_view kSuffix = ".bin";
constexpr size_t kKeyDigits = 16;
// A process that lists or removes holds a file for a moment; one that hangs must not stop others.
constexpr absl::Duration kPollInterval = absl::Milliseconds(10);
constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr size_t kSourceBytesMax = 1000;
constexpr int64_t kShareOfDisk = 4;

std::string LockOf(const std::string& path) { return absl::StrCat(path, ".lock"); }
std::string SourceOf(const std::string& path) { return absl::StrCat(path, ".source"); }

// "tokens_0123456789abcdef.bin" of that name or of one beside it; "": neither.
std::string TokenFileNameOf(absl::string_view name) {
  const size_t length = kPrefix.size() + kKeyDigits + kSuffix.size();
  const absl::string_view own = name.substr(0, length);
  const bool is_one =
      own.size() == length && absl::StartsWith(own, kPrefix) && absl::EndsWith(own, kSuffix) &&
      own.substr(kPrefix.size(), kKeyDigits).find_first_not_of("0123456789abcdef") ==
          absl::string_view::npos &&
      (name.size() == length || name[length] == '.');
  return is_one ? std::string(own) : "";
}

// An exclusive lock needs a file that may be written, on NFS. Invalid: there is no such file, it is
// not ours, or another process holds it.
UniqueFd TakeAlone(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) fd.Reset();
  return fd;
}

bool IsHeld(const std::string& path) {
  return access(path.c_str(), F_OK) == 0 && !TakeAlone(path).valid();
}

// Adds a file beside the token file, or the token file itself, whose times alone count once it is
// there.
void Count(const struct stat& info, bool is_token_file, CachedTokens* tokens) {
  tokens->bytes += int64_t{info.st_blocks} * 512;
  const absl::Time written = absl::TimeFromTimespec(info.st_mtim);
  if (is_token_file) {
    tokens->used = std::max(written, absl::TimeFromTimespec(info.st_atim));
    tokens->is_whole = true;
  } else if (!tokens->is_whole) {
    tokens->used = std::max(tokens->used, written);
  }
}

std::string Age(absl::Duration age) {
  const int64_t hours = absl::ToInt64Hours(age);
  return hours < 48 ? absl::StrCat(hours, " hours") : absl::StrCat(hours / 24, " days");
}

std::string Bytes(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

}  // namespace

std::string DefaultTokenCacheDirectory(const EnvironmentLookup& environment) {
  const std::string cache = environment("XDG_CACHE_HOME").value_or("");
  if (!cache.empty()) return absl::StrCat(cache, "/convene");
  const std::string home = environment("HOME").value_or("");
  return home.empty() ? "" : absl::StrCat(home, "/.cache/convene");
}

std::string CachedTokenPath(const std::string& directory, uint64_t key) {
  return absl::StrCat(directory, "/", kPrefix, absl::Hex(key, absl::kZeroPad16), kSuffix);
}

absl::StatusOr<TokenFileUse> TokenFileUse::Begin(const std::string& path, Clock* clock) {
  const MonotonicTime deadline = clock->Now() + kPatience;
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDONLY));
  while (flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
    if (clock->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(path, " has been locked by another process for ",
                       absl::FormatDuration(kPatience), "; `fuser ", path, "` tells which one"));
    }
    clock->SleepFor(kPollInterval);
  }
  if (!IsFileAt(path, fd.get())) return absl::NotFoundError(absl::StrCat(path, " was removed"));
  // The time of its last use. Fails where the file is another user's.
  const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  (void)futimens(fd.get(), times);
  return TokenFileUse(std::move(fd));
}

void NoteTokenFileSource(const std::string& path, const std::string& text) {
  const std::string note = SourceOf(path);
  const auto fd = OpenFile(note, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd.ok()) WriteAll(fd->get(), Utf8(text, kSourceBytesMax), note).IgnoreError();
}

absl::StatusOr<std::vector<CachedTokens>> ListTokenCache(const std::string& directory) {
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (absl::IsNotFound(names.status())) return std::vector<CachedTokens>();
  CONVENE_RETURN_IF_ERROR(names.status());
  std::map<std::string, CachedTokens> by_name;
  for (const std::string& name : *names) {
    const std::string token_file = TokenFileNameOf(name);
    struct stat info;
    if (token_file.empty() || stat(absl::StrCat(directory, "/", name).c_str(), &info) != 0)
      continue;
    Count(info, name == token_file, &by_name[token_file]);
  }
  std::vector<CachedTokens> cache;
  for (auto& [name, tokens] : by_name) {
    tokens.path = absl::StrCat(directory, "/", name);
    tokens.is_in_use = IsHeld(tokens.path) || IsHeld(LockOf(tokens.path));
    tokens.source = Utf8(ReadFile(SourceOf(tokens.path)).value_or(""), kSourceBytesMax);
    cache.push_back(std::move(tokens));
  }
  std::sort(cache.begin(), cache.end(),
            [](const CachedTokens& a, const CachedTokens& b) { return a.used < b.used; });
  return cache;
}

std::vector<SurplusTokens> SurplusOf(absl::Span<const CachedTokens> cache,
                                     const TokenCacheBounds& bounds, absl::Time now) {
  CONVENE_CHECK(bounds.bytes_max.has_value());
  int64_t bytes = 0;
  for (const CachedTokens& tokens : cache) bytes += tokens.bytes;
  std::vector<SurplusTokens> surplus;
  for (const CachedTokens& tokens : cache) {
    if (tokens.is_in_use) continue;
    const absl::Duration unused = now - tokens.used;
    std::string why;
    if (!tokens.is_whole && unused > kAbandonedAfter) {
      why = absl::StrCat("half made, and nobody has gone on with it for ", Age(unused));
    } else if (unused > bounds.unused_max) {
      why = bounds.unused_max < absl::ZeroDuration() ? "not in use"
                                                     : absl::StrCat("not used for ", Age(unused));
    } else if (bytes > *bounds.bytes_max) {
      why = absl::StrCat("the token files take ", Bytes(bytes), " and may take ",
                         Bytes(*bounds.bytes_max), "; it was not used for the longest time");
    } else {
      continue;
    }
    bytes -= tokens.bytes;
    surplus.push_back({tokens, std::move(why)});
  }
  return surplus;
}

absl::StatusOr<std::vector<SurplusTokens>> TokenCacheSurplus(const std::string& directory,
                                                             TokenCacheBounds bounds) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<CachedTokens> cache, ListTokenCache(directory));
  struct statvfs disk;
  if (!bounds.bytes_max.has_value()) {
    const bool is_known = statvfs(directory.c_str(), &disk) == 0;
    bounds.bytes_max =
        is_known ? static_cast<int64_t>(disk.f_blocks * disk.f_frsize) / kShareOfDisk : INT64_MAX;
  }
  return SurplusOf(cache, bounds, WallNow());
}

bool RemoveCachedTokens(const std::string& path) {
  // First the lock of those who would make the file: nobody begins to while it goes.
  const absl::StatusOr<FileLock> lock =
      FileLock::Take(LockOf(path), {.silence_max = absl::ZeroDuration()});
  if (!lock.ok()) return false;
  if (access(path.c_str(), F_OK) == 0) {
    const UniqueFd tokens = TakeAlone(path);
    if (!tokens.valid() || unlink(path.c_str()) != 0) return false;
  }
  const std::string directory = ParentDirectory(path);
  for (const std::string& name : ListDirectory(directory).value_or(std::vector<std::string>())) {
    const std::string beside = absl::StrCat(directory, "/", name);
    if (absl::StartsWith(beside, path + ".") && beside != LockOf(path)) unlink(beside.c_str());
  }
  return unlink(LockOf(path).c_str()) == 0;
}

void PruneTokenCache(const std::string& directory, const TokenCacheBounds& bounds) {
  const absl::StatusOr<std::vector<SurplusTokens>> surplus = TokenCacheSurplus(directory, bounds);
  if (!surplus.ok()) {
    spdlog::warn("data: the token files that nobody uses stay: {}", surplus.status().ToString());
    return;
  }
  for (const auto& [tokens, why] : *surplus) {
    if (!RemoveCachedTokens(tokens.path)) continue;
    spdlog::info("data: removed {} ({}): {}", tokens.path, Bytes(tokens.bytes), why);
  }
}

}  // namespace convene::worker
