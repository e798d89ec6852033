#include "agent/custody/program.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"

namespace convene::agent {
namespace {

bool IsExecutable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

absl::Status NotExecutable(const std::string& path) {
  return absl::PermissionDeniedError(absl::StrCat(
      "The program ", path, " is not executable. Run `chmod +x ", path,
      "`, or name its interpreter first (for a Python script: `python3 ", path, "`)."));
}

}  // namespace

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& search_path) {
  if (name.empty()) return absl::NotFoundError("The program to run has an empty name.");
  if (name.find('/') != std::string::npos) {
    if (IsDirectory(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("The program ", name, " is a directory. Name the file in it to run."));
    }
    if (!IsFile(name)) {
      return absl::NotFoundError(
          absl::StrCat("The program ", name,
                       " does not exist on this node. Check the path; a relative one starts at the "
                       "directory where `convene` was started."));
    }
    if (!IsExecutable(name)) return NotExecutable(name);
    return name;
  }
  std::string not_executable;
  const std::string directories = search_path.empty() ? "/usr/bin:/bin" : search_path;
  for (const std::string& directory : std::vector<std::string>(absl::StrSplit(directories, ':'))) {
    const std::string path = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    if (!IsFile(path)) continue;
    if (IsExecutable(path)) return path;
    if (not_executable.empty()) not_executable = path;
  }
  if (!not_executable.empty()) return NotExecutable(not_executable);
  return absl::NotFoundError(absl::StrCat("The program ", name, " was not found in PATH (",
                                          directories, "). Check its spelling, or give its path",
                                          IsFile(name) ? absl::StrCat(": ./", name) : "", "."));
}

}  // namespace convene::agent
