// The metrics as a file of TensorBoard's events.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/report/metrics.h"

namespace convene::worker {

// PURE. One record of an events file: its length, a checksum of that, the bytes, a checksum of
// these (TensorFlow's record_writer.cc; CRC-32C, masked).
std::string EventRecord(absl::string_view bytes);

// The open file of the one rank that writes it. Not thread-safe.
class EventFile {
 public:
  // A new file in `directory`, which is made when absent. Its first events say that what other
  // files there tell of steps behind `resumed_step` holds no longer: the run does these again.
  // Errors: tools/base/files.h.
  static absl::StatusOr<EventFile> Create(const std::string& directory, int64_t resumed_step,
                                          absl::Time now);

  // The record's numbers, under "train/loss", "validation/loss", "validation/NAME/loss",
  // "checkpoint/seconds" and the like. On failure no part of them stays behind.
  absl::Status Append(const MetricsRecord& record, absl::Time now);

 private:
  EventFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
  int64_t size_ = 0;  // of whole records
};

}  // namespace convene::worker
