// The join token that `convene launch` made for a run, kept where the same user's other commands
// find it: `convene status RUN`, logs, events, incidents, read-token.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/environment.h"

namespace convene::launcher {

struct KeptToken {
  std::string endpoint;  // "host:port", as FormatPlaces writes it
  std::string run_id;
  std::string token;
};

// $XDG_STATE_HOME/convene/tokens, or ~/.local/state/convene/tokens (XDG Base Directory
// Specification 0.8): a home directory that machines share makes the token known on all of them. ""
// where the environment names neither.
std::string KeptTokensFolder(const EnvironmentLookup& environment);

// Owns the file of one token, which its user alone may read.
class TokenFile {
 public:
  // Makes the folder where it is not there. The file of an earlier run at the same endpoint is
  // replaced; of more than 1,000 files the oldest go, as a launch that is killed leaves its own.
  // FailedPrecondition for no folder (""), the system's errors.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Keep(const std::string& folder,
                                                         const KeptToken& token);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

 private:
  TokenFile(std::string path, ino_t inode) : path_(std::move(path)), inode_(inode) {}

  const std::string path_;
  const ino_t inode_;  // of the file that Keep wrote
};

// The token kept for the endpoint; where `endpoint` is "", for the run: the newest, where several
// runs have had the name. nullopt where there is none, and where the launch was killed on this
// machine and left it. By endpoint: PermissionDenied where others may read the file,
// InvalidArgument where the file holds no token; the texts name the file. By run such files are
// passed over.
absl::StatusOr<std::optional<KeptToken>> FindKeptToken(const std::string& folder,
                                                       const std::string& endpoint,
                                                       const std::string& run_id);

}  // namespace convene::launcher
