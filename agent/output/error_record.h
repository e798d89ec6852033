// PURE. A worker's own report of its end, in $TORCHELASTIC_ERROR_FILE.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace convene::agent {

struct ErrorRecord {
  std::vector<std::string> lines;               // the first of its message: 1 to 3, as LastLines'
  absl::Time time = absl::InfiniteFuture();     // by the worker; PyTorch gives whole seconds
  absl::Time written = absl::InfiniteFuture();  // of the file, to tell equal seconds apart
  std::string path;                             // of the file
};

// The two forms of torch.distributed.elastic:
//   {"message": {"message": "...", "extraInfo": {"py_callstack": "...", "timestamp": "123"}}}
//   {"message": "...", "timestamp": 123}
// A record without a timestamp has InfiniteFuture. nullopt: the text is no such record.
std::optional<ErrorRecord> ParseErrorRecord(const std::string& json);

// The record as the agent hands it on to its own parent: with the worker's exit code (minus the
// signal where one killed it) as "errorCode", as torchrun adds it to the first form. A text that is
// no record comes back unchanged.
std::string WithErrorCode(const std::string& json, int error_code);

}  // namespace convene::agent
