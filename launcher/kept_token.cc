#include "launcher/kept_token.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rendezvous/lock/secret_file.h"
#include "rendezvous/lock/token.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr size_t kMostFiles = 1000;
constexpr size_t kMostBytes = 4096;  // of a token, an endpoint and a run's name
constexpr char kUnfinished[] = ".tmp.";

// The files' paths, the newest first. None where there is no folder.
std::vector<std::string> NewestFirst(const std::string& folder) {
  std::vector<std::pair<std::filesystem::file_time_type, std::string>> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code gone;  // another command may have removed it
    const auto when = entry.last_write_time(gone);
    if (!gone) files.emplace_back(when, entry.path().string());
  }
  std::sort(files.rbegin(), files.rend());
  std::vector<std::string> paths;
  for (auto& [when, path] : files) paths.push_back(std::move(path));
  return paths;
}

// Where a pid means one process: "n1/pid:[4026531836]". Two containers may have one host name.
std::string PidSpace() {
  std::error_code error;
  return absl::StrCat(HostName(), "/",
                      std::filesystem::read_symlink("/proc/self/ns/pid", error).string());
}

// Whether the file was left by a process that was killed. Of another machine's or container's
// process nothing is known here. `keeper`: the file's last line, PidSpace() and a pid.
bool IsLeft(absl::string_view keeper) {
  const std::vector<absl::string_view> words = absl::StrSplit(keeper, ' ');
  int pid = 0;
  return words.size() == 2 && words[0] == PidSpace() && absl::SimpleAtoi(words[1], &pid) &&
         kill(pid, 0) != 0 && errno == ESRCH;
}

// nullopt of a file that was left.
absl::StatusOr<std::optional<KeptToken>> Read(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text,
                           rendezvous::ReadSecretFile(path, "the join token", kMostBytes));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 3) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is no file of convene launch with a join token and a run's name: remove it"));
  }
  CONVENE_RETURN_IF_ERROR(rendezvous::CheckToken(lines[0], path));
  if (IsLeft(lines[2])) return std::nullopt;
  return KeptToken{std::filesystem::path(path).filename().string(), lines[1], lines[0]};
}

}  // namespace

std::string KeptTokensFolder(const EnvironmentLookup& environment) {
  if (const auto state = environment("XDG_STATE_HOME"); state && absl::StartsWith(*state, "/")) {
    return *state + "/convene/tokens";
  }
  const std::string home = environment("HOME").value_or("");
  return home.empty() ? "" : home + "/.local/state/convene/tokens";
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Keep(const std::string& folder,
                                                           const KeptToken& token) {
  if (folder.empty()) return absl::FailedPreconditionError("$HOME is not set");
  CONVENE_RETURN_IF_ERROR(MakeDirectories(folder));
  const std::vector<std::string> files = NewestFirst(folder);
  for (size_t i = kMostFiles - 1; i < files.size(); ++i) unlink(files[i].c_str());
  const std::string path = absl::StrCat(folder, "/", token.endpoint);
  const std::string unfinished = absl::StrCat(path, kUnfinished, getpid());
  unlink(unfinished.c_str());  // of an earlier process with this pid
  struct stat facts = {};
  {
    CONVENE_ASSIGN_OR_RETURN(const UniqueFd file,
                             OpenFile(unfinished, O_WRONLY | O_CREAT | O_EXCL, 0600));
    CONVENE_RETURN_IF_ERROR(WriteAll(
        file.get(),
        absl::StrCat(token.token, "\n", token.run_id, "\n", PidSpace(), " ", getpid(), "\n"),
        unfinished));
    if (fstat(file.get(), &facts) != 0) return ErrnoStatus(errno, "look at " + unfinished);
  }
  CONVENE_RETURN_IF_ERROR(RenameFile(unfinished, path));
  return std::unique_ptr<TokenFile>(new TokenFile(path, facts.st_ino));
}

TokenFile::~TokenFile() {
  struct stat facts = {};
  // A later launch at the same endpoint has replaced the file: that one is not ours.
  if (stat(path_.c_str(), &facts) == 0 && facts.st_ino == inode_) unlink(path_.c_str());
}

absl::StatusOr<std::optional<KeptToken>> FindKeptToken(const std::string& folder,
                                                       const std::string& endpoint,
                                                       const std::string& run_id) {
  if (folder.empty() || (endpoint.empty() && run_id.empty())) return std::nullopt;
  if (!endpoint.empty()) {
    const std::string path = absl::StrCat(folder, "/", endpoint);
    const auto token = Read(path);
    if (absl::IsNotFound(token.status())) return std::nullopt;
    return token;
  }
  for (const std::string& path : NewestFirst(folder)) {
    // A file that is not finished, of another user or damaged is not the run's.
    if (absl::StrContains(std::filesystem::path(path).filename().string(), kUnfinished)) continue;
    const auto token = Read(path);
    if (token.ok() && token->has_value() && (*token)->run_id == run_id) return *token;
  }
  return std::nullopt;
}

}  // namespace convene::launcher
