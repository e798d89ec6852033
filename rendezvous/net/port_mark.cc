#include "rendezvous/net/port_mark.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

bool IsUrl(const std::string& memory) { return absl::StrContains(memory, "://"); }

}  // namespace

std::string PortMark::DefaultFolder() {
  return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

std::string PortMark::PathOf(int port, const std::string& folder) {
  return absl::StrCat(folder, "/convene-daemon.", geteuid(), ".", port);
}

absl::StatusOr<std::unique_ptr<PortMark>> PortMark::Leave(int port, const std::string& memory,
                                                          const std::string& folder) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(memory, error).string();
  const std::string path = PathOf(port, folder);
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(path, error || IsUrl(memory) ? memory : absolute));
  return std::unique_ptr<PortMark>(new PortMark(path));
}

std::optional<std::string> PortMark::Find(int port, const std::string& folder) {
  const std::string path = PathOf(port, folder);
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    return std::nullopt;  // Any user may put a file there.
  }
  const absl::StatusOr<std::string> memory = ReadFile(path);
  if (!memory.ok()) return std::nullopt;
  // `term`: daemons take turns with the directory (journal/file_journal.h).
  for (const char* file : {"/journal", "/term"}) {
    if (IsUrl(*memory) || access((*memory + file).c_str(), F_OK) == 0) return *memory;
  }
  return std::nullopt;
}

PortMark::~PortMark() { unlink(path_.c_str()); }

}  // namespace convene::rendezvous
