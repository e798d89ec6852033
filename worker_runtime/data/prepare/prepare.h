// Makes token files of text and JSON lines: once a node for the trainer, or where a person wants
// it.
//
// Errors of both functions. NotFound: a pattern matches nothing (named). InvalidArgument: no
// pattern, a directory, no document in all files, or a broken line beyond max_bad_lines (file, line
// and why). DataLoss: a damaged or truncated .gz or .zst (file and offset). FailedPrecondition: a
// file changed while it was read (not Aborted: a file that always grows must not start workers
// again for ever); or the tokenizer names no token that ends a document. Of a command that reads a
// file: OpenCommand's (command_stream.h). Unimplemented: the
// tokenizer's vocabulary is to be cut, and cannot be (IndispensableIds). ResourceExhausted: the
// disk is full, or no thread is left. Otherwise as tools/base/files.h, with the path. Nothing
// stands under the final name unless it is whole.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/token_cache.h"

namespace convene::worker {

// Bytes of the input files as they lie on the disk. Called now and then from the calling thread,
// also while another process makes the file; where it was called, once with done = total at the
// end.
using PrepareProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

struct TokenCache {
  // Where token files are kept, best on a disk of this node. Made when absent. "": nowhere.
  std::string directory;
  // After a file was made, what is surplus by these goes (token_cache.h).
  TokenCacheBounds bounds = {};
  // Another process that is making the same file is waited for until it has come no further for so
  // long.
  absl::Duration silence_max = absl::Minutes(30);
  Clock* clock = &Clock::Real();
};

struct PreparedTokens {
  std::string path;
  TokenFileUse use;  // no process removes the file before its end
};

// A whole token file of this input: a file that is in the cache already (same paths,
// sizes and modification times, same tokenizer, same options), or a new one. The call that makes it
// logs a warning where broken lines are left out: how many, and the first. Of many processes that
// call at once exactly one makes it; the others wait and share it. A process that dies while making
// it leaves a part, from which the next call goes on.
//
// Also DeadlineExceeded: silence_max passed (names the other process and the lock file).
// FailedPrecondition: the cache has no directory.
absl::StatusOr<PreparedTokens> PrepareTokenFile(const PrepareOptions& options,
                                                const TokenCache& cache,
                                                const PrepareProgress& progress);

// Makes `output`, and replaces a file of that name; where it is a link, the file that it leads to,
// whose folder alone is written to. Meanwhile `output`.partial, `output`.journal
// and `output`.lock (with more names that begin so) stand beside it, and are no input for any
// pattern; a call with the same input, tokenizer and options goes on from a part that an earlier
// one left, a call with others begins anew. A failed call leaves the part where it has a journal
// and the input did not change, and says so in its error; a part that cannot be opened stays, too.
//
// Also FailedPrecondition: another process is making `output`. InvalidArgument: `output` is an
// input, or stands there and is not a file. NotFound: its directory is not there.
absl::StatusOr<PrepareSummary> PrepareOutput(const PrepareOptions& options,
                                             const std::string& output,
                                             const PrepareProgress& progress);

}  // namespace convene::worker
