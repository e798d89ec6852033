// One process at a time, by a file.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

// Waits until this process alone holds `path`, which is made when absent, for as long as the
// descriptor is open: the kernel frees the lock when its owner dies. The owner may remove the file.
// DeadlineExceeded: `timeout` passed; the text names the file. Else as OpenFile.
absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration timeout, Clock* clock);

}  // namespace convene::worker
