// Makes the token file of a set of text files, once per node.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::worker {

struct PrepareOptions {
  // Files or glob patterns of text, one document a file. Patterns in the given order, the files of
  // one sorted; a file that two patterns match counts once, empty files not at all.
  std::vector<std::string> patterns;
  // Where token files are kept, best on a disk of this node. Made when absent.
  std::string cache_directory;
  // Called now and then by the process that makes the file, from the calling thread. May be empty.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
  // How long to wait for another process that is making the same file.
  absl::Duration wait_timeout = absl::Minutes(30);
  Clock* clock = &Clock::Real();
};

// The path of a whole token file of these texts: a file that is there already (same paths, sizes
// and modification times), or a new one. Of many processes that call at once exactly one makes it;
// the others wait and share it. A process that dies while making it leaves a temporary file, which
// the next call overwrites.
//
// NotFound: a pattern matches nothing (named). InvalidArgument: no pattern, a directory, or all
// files empty. FailedPrecondition: a file changed while it was read (not Aborted: a file that
// always grows must not start workers again for ever). DeadlineExceeded: wait_timeout passed (names
// the lock file). ResourceExhausted: the disk is full; no partial file is left. Otherwise as
// tools/base/files.h, with the path.
absl::StatusOr<std::string> PrepareTokenFile(const PrepareOptions& options);

}  // namespace convene::worker
