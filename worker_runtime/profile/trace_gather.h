// The way of a trace from all ranks to one file on rank 0.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/profile/trace.h"

namespace convene::worker {

// Every rank of `host` calls it with its own part, whose times are by `clock`. One rank after the
// other compares its clock with rank 0's, writes its events down in rank 0's time, and sends them
// in pieces: rank 0 calls `write` with all of the file, a piece of 1 MiB at most at a time. On
// other ranks nothing calls `write`. Time 0 of the file is the begin of rank 0's first step.
//
// Errors: the collective's, within its timeout: a rank that is gone ends it on all.
absl::Status GatherTrace(const RankTrace& trace, Clock& clock, Collective& host,
                         absl::FunctionRef<void(absl::string_view piece)> write);

// A file that has its name only once it is whole. Not thread-safe.
class TraceFile {
 public:
  // Begins "PATH.tmp". Errors: OpenFile's.
  static absl::StatusOr<std::unique_ptr<TraceFile>> Open(const std::string& path);
  // Removes what was not finished.
  ~TraceFile();

  // After an error nothing more is written.
  void Write(absl::string_view piece);
  // Gives the file its name; the first error of any call.
  absl::Status Finish();

 private:
  TraceFile(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  UniqueFd file_;
  absl::Status status_;
};

}  // namespace convene::worker
