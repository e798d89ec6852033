#include "worker_runtime/data/prepare/sources.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

SourceFile Describe(const std::string& path, const struct stat& info) {
  return {path, info.st_size,
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec, ""};
}

bool IsSame(const SourceFile& source, const struct stat& info) {
  const SourceFile now = Describe(source.path, info);
  return now.bytes == source.bytes && now.modified_ns == source.modified_ns;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandPattern(const std::string& pattern) {
  if (access(pattern.c_str(), F_OK) == 0) return std::vector<std::string>{pattern};
  glob_t found = {};
  const int error = glob(pattern.c_str(), GLOB_ERR | GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (error == GLOB_NOMATCH) {
    return absl::NotFoundError(absl::StrCat("data: no file matches '", pattern, "'"));
  }
  if (error == GLOB_ABORTED) {
    return absl::PermissionDeniedError(
        absl::StrCat("data: a directory of '", pattern, "' cannot be read"));
  }
  if (error != 0) return absl::ResourceExhaustedError(absl::StrCat("data: glob of ", pattern));
  std::sort(paths.begin(), paths.end());  // by bytes: glob's own order depends on the locale
  return paths;
}

absl::StatusOr<std::vector<SourceFile>> ListSources(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return absl::InvalidArgumentError("data: no file and no pattern is given");
  std::vector<SourceFile> sources;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ExpandPattern(pattern));
    for (const std::string& relative : paths) {
      std::error_code error;
      const std::string path =
          std::filesystem::absolute(relative, error).lexically_normal().string();
      if (error) return ErrnoStatus(error.value(), absl::StrCat("data: ", relative));
      if (!seen.insert(path).second) continue;
      struct stat info;
      if (stat(path.c_str(), &info) != 0) {
        return ErrnoStatus(errno, absl::StrCat("data: stat ", path));
      }
      const std::string named = absl::StrCat("data: ", path, " (by '", pattern, "') is ");
      if (S_ISDIR(info.st_mode)) {
        return absl::InvalidArgumentError(
            absl::StrCat(named, "a directory; to take all of its files, write ",
                         (std::filesystem::path(path) / "*").string()));
      }
      if (!S_ISREG(info.st_mode)) {
        return absl::InvalidArgumentError(absl::StrCat(named, "neither a file nor a directory"));
      }
      if (info.st_size > 0) sources.push_back(Describe(path, info));
    }
  }
  if (sources.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data: all ", seen.size(), " files of ",
                                                   JoinCapped(patterns, 3), " are empty"));
  }
  return sources;
}

absl::Status SourceChanged(const SourceFile& source) {
  return absl::FailedPreconditionError(absl::StrCat(
      "data: ", source.path, " changed while it was read; start again when it is whole"));
}

absl::Status CheckUnchanged(int fd, const SourceFile& source) {
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("data: stat ", source.path));
  return IsSame(source, info) ? absl::OkStatus() : SourceChanged(source);
}

bool IsChanged(const SourceFile& source) {
  struct stat info;
  return stat(source.path.c_str(), &info) == 0 && !IsSame(source, info);
}

}  // namespace convene::worker
