// PURE. The words for a person at the end of a token file's making.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "worker_runtime/data/prepare/options.h"

namespace convene::worker {

// "a.bin: 12,345 documents, 6,789,012 tokens of a vocabulary of 32,000, 29.1 MiB of text (4.5 bytes
// a token), in 0:42", and a second line with what was left out, if anything was. Each line ends
// with a newline.
std::string SummaryText(const std::string& path, int vocabulary_size, absl::Duration time,
                        const PrepareSummary& summary);

}  // namespace convene::worker
