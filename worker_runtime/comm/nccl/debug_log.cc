#include "worker_runtime/comm/nccl/debug_log.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"

namespace convene::worker {
namespace {

constexpr const char* kVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"};

bool UserHasSetAny() {
  for (const char* const variable : kVariables) {
    if (getenv(variable) != nullptr) return true;
  }
  return false;
}

}  // namespace

NcclDebugLog::NcclDebugLog() {
  static std::atomic<bool> taken = false;
  if (UserHasSetAny() || taken.exchange(true)) return;
  const char* const directory = getenv("TMPDIR");
  std::string path =
      absl::StrCat(directory != nullptr ? directory : "/tmp", "/convene-nccl.XXXXXX");
  // NCCL reads %h and %p in the name as the host and the process.
  if (path.find('%') != std::string::npos) return;
  const int fd = mkstemp(path.data());
  if (fd < 0) return;
  close(fd);
  path_ = path;
  setenv("NCCL_DEBUG", "INFO", /*overwrite=*/1);
  setenv("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM,NVLS", 1);
  setenv("NCCL_DEBUG_FILE", path_.c_str(), 1);
}

NcclDebugLog::~NcclDebugLog() {
  if (path_.empty()) return;
  // NCCL keeps the file open, and goes on writing a few lines a communicator into the file without
  // a name.
  unlink(path_.c_str());
  for (const char* const variable : kVariables) unsetenv(variable);
}

std::string NcclDebugLog::Read() const {
  if (path_.empty()) return "";
  const auto log = ReadFile(path_);
  return log.ok() ? *log : "";
}

}  // namespace convene::worker
