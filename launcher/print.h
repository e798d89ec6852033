// The answer of a query, on stdout.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace convene::launcher {

// Prints at once, even into a pipe; "" writes out what stdio holds. Cancelled where the reader is
// gone, as `| head` ends: no more is to be said. DataLoss, with the reason, where the disk is full
// or stdout is closed, also for a text that was printed before. Not thread-safe.
absl::Status Print(absl::string_view text);

}  // namespace convene::launcher
