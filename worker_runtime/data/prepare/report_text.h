// PURE. The words for a person while a token file is made, and at its end.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "worker_runtime/data/prepare/options.h"

namespace convene::worker {

// Bytes of the input over time, from the first Record on: work that an earlier process did counts
// for nothing.
class ProgressRate {
 public:
  void Record(int64_t done_bytes, absl::Duration now);
  // "[####----]  25%  1.0 GiB of 4.0 GiB  25.1 MiB/s  ETA 2:03", without a newline.
  std::string Text(int64_t total_bytes) const;

 private:
  bool has_begun_ = false;
  int64_t first_bytes_ = 0, done_bytes_ = 0;
  absl::Duration first_, now_;
};

// "a.bin: 12,345 documents, 6,789,012 tokens of a vocabulary of 32,000, 29.1 MiB of text (4.5 bytes
// a token), in 0:42", and a second line with what was left out, if anything was. Each line ends
// with a newline.
std::string SummaryText(const std::string& path, int vocabulary_size, absl::Duration time,
                        const PrepareSummary& summary);

}  // namespace convene::worker
