#include "tools/base/full_disk.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"

namespace convene {

bool TellsFullDisk(const absl::Status& status) {
  return absl::IsResourceExhausted(status) &&
         (absl::StrContains(status.message(), strerror(ENOSPC)) ||
          absl::StrContains(status.message(), strerror(EDQUOT)));
}

}  // namespace convene
