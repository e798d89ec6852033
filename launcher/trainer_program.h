// The commands that are done by the trainer's program, which has the numeric libraries.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

// `convene-train <program>` with the flags and words that `reader` has read, as words for exec.
// `passed_over`: flags that are the launcher's alone. Errors: ResolveCommand's.
absl::StatusOr<std::vector<std::string>> TrainerWords(
    const std::string& program, const FlagReader& reader, const std::vector<std::string>& words,
    const std::set<std::string>& passed_over = {});

// This process becomes that program. Returns only where it cannot be started: NotFound.
absl::Status BecomeProgram(std::vector<std::string> words);

// That program as the workers of a job of `convene run`, of which rank 0 of each node is shown,
// without a prefix. The job's exit code is its first failed worker's.
RunFlags WorkersOf(std::vector<std::string> words, const std::string& nproc_per_node);

}  // namespace convene::launcher
