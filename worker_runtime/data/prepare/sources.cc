#include "worker_runtime/data/prepare/sources.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
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

// The paths of a pattern in which ** is no more than *, in any order; none where nothing matches.
absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern) {
  // A folder that is not there has no files.
  const auto ends_here = [](const char*, int error) {
    return error == ENOENT || error == ENOTDIR || error == ELOOP ? 0 : 1;
  };
  glob_t found = {};
  const int error = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, ends_here, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (error == GLOB_ABORTED) {
    return absl::PermissionDeniedError(
        absl::StrCat("data: a directory of '", pattern, "' cannot be read"));
  }
  if (error != 0 && error != GLOB_NOMATCH) {
    return absl::ResourceExhaustedError(absl::StrCat("data: glob of ", pattern));
  }
  return paths;
}

// Where a component ** of the pattern begins; npos: it has none.
size_t FindAnyDepth(const std::string& pattern) {
  return absl::StrCat("/", pattern, "/").find("/**/");
}

// The pattern that means this path alone.
std::string PatternOf(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (absl::StrContains("*?[]{},\\", c)) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

// Appends `folder` and the folders below it, each with a slash at its end: none whose name begins
// with a dot, and each once, whatever links lead to it, so that they lead round in no circle.
absl::Status AddFolders(const std::string& folder, std::set<std::pair<dev_t, ino_t>>* seen,
                        std::vector<std::string>* folders) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    // Not of a file, or of a link that leads nowhere.
    if (errno == EACCES) return ErrnoStatus(errno, absl::StrCat("data: stat ", folder));
    return absl::OkStatus();
  }
  if (!seen->insert({info.st_dev, info.st_ino}).second) return absl::OkStatus();
  folders->push_back(folder);
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  for (const std::string& name : names) {
    if (name[0] == '.') continue;
    CONVENE_RETURN_IF_ERROR(AddFolders(absl::StrCat(folder, name, "/"), seen, folders));
  }
  return absl::OkStatus();
}

// Adds the files, and no folder, that the pattern stands for.
absl::Status AddFiles(const std::string& pattern, std::set<std::string>* files) {
  const size_t at = FindAnyDepth(pattern);
  if (at == std::string::npos) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> paths, Glob(pattern));
    std::copy_if(paths.begin(), paths.end(), std::inserter(*files, files->end()),
                 [](const std::string& path) { return !IsDirectory(path); });
    return absl::OkStatus();
  }
  const std::string rest = pattern.size() > at + 3 ? pattern.substr(at + 3) : "*";
  std::vector<std::string> roots = {"./"};
  if (at > 0) {
    CONVENE_ASSIGN_OR_RETURN(roots, Glob(pattern.substr(0, at)));
  }
  for (const std::string& root : roots) {
    std::set<std::pair<dev_t, ino_t>> seen;
    std::vector<std::string> folders;
    CONVENE_RETURN_IF_ERROR(AddFolders(root, &seen, &folders));
    for (const std::string& folder : folders) {
      CONVENE_RETURN_IF_ERROR(AddFiles(PatternOf(folder) + rest, files));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandPattern(const std::string& pattern) {
  if (access(pattern.c_str(), F_OK) == 0) return std::vector<std::string>{pattern};
  std::vector<std::string> paths;
  if (FindAnyDepth(pattern) == std::string::npos) {
    CONVENE_ASSIGN_OR_RETURN(paths, Glob(pattern));
    std::sort(paths.begin(), paths.end());  // by bytes: glob's own order depends on the locale
  } else {
    std::set<std::string> files;
    CONVENE_RETURN_IF_ERROR(AddFiles(pattern, &files));
    paths.assign(files.begin(), files.end());
  }
  if (paths.empty()) {
    return absl::NotFoundError(absl::StrCat("data: no file matches '", pattern, "'"));
  }
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
