// Where an output is written, and the one process that writes it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/data/store/file_lock.h"

namespace convene::worker {

// The name, there or not, that a link of this name leads to; `path` itself where it is no link. A
// rename to `path` would replace the link, and take the room beside it.
std::string PlaceOfOutput(const std::string& path);

std::string LockPathOf(const std::string& path);

// Takes LockPathOf(`path`), which the holder removes at its end: `prepare` and `convert` write a
// file of one name one after the other. FailedPrecondition: another process holds it (named). Else
// FileLock::Take's errors, with what to do.
absl::StatusOr<FileLock> LockOutput(const std::string& path);

}  // namespace convene::worker
