// A file that another program reads: its output is the content.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_runtime/data/prepare/byte_stream.h"

namespace convene::worker {

// A command of the shell, in which each {} becomes the quoted path.
std::string CommandFor(const std::string& command, const std::string& path);

// The command that reads a Parquet file (Apache Parquet, format 2) as JSON lines: by `python` with
// pyarrow. `columns`: those that are wanted as far as they are there, one at least; empty: all.
std::string ParquetCommand(const std::string& python, const std::vector<std::string>& columns,
                           const std::string& path);

// Starts source.command, of a file, or of none where source.path is empty. Its standard output is
// read as it comes; it has no input, and ends when the stream goes. Read's errors, with the last
// words of the command's standard error: DataLoss, it ended with exit code 65 (EX_DATAERR of
// sysexits.h: a damaged file); FailedPrecondition, it ended with another one than 0;
// Unavailable, a signal ended it or a command of its shell; DeadlineExceeded, nothing came for
// `patience`.
absl::StatusOr<std::unique_ptr<ByteStream>> OpenCommand(
    const SourceFile& source, absl::Duration patience = absl::Minutes(10));

}  // namespace convene::worker
