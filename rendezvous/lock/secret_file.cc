#include "rendezvous/lock/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, absl::string_view what,
                                           size_t most) {
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY | O_NONBLOCK));
  struct stat facts = {};
  if (fstat(file.get(), &facts) != 0) return ErrnoStatus(errno, path);
  // A Kubernetes Secret is a file of root's that its group may read (fsGroup): others may never.
  const bool group_reads = (facts.st_mode & S_IRGRP) != 0 && facts.st_uid == geteuid();
  if (S_ISREG(facts.st_mode) && (group_reads || (facts.st_mode & S_IROTH) != 0)) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, " in ", path, " can be read by others: chmod 600 ", path));
  }
  // A named pipe's first writer is not waited for; a writer that is there is.
  (void)fcntl(file.get(), F_SETFL, 0);
  std::string content(most, '\0');
  size_t size = 0;
  for (ssize_t count = 1; count > 0 && size < most; size += static_cast<size_t>(count)) {
    count = read(file.get(), content.data() + size, most - size);
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path));
  }
  content.resize(size);
  return content;
}

}  // namespace convene::rendezvous
