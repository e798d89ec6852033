// `convene-train bench`: one rank of a bench.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::worker {

// All ranks of a job call it. Rank 0 prints. Returns the exit code: kTrainingFailed where a
// result is wrong. Errors: InvalidArgument for flags; NotFound, InvalidArgument for the file of
// --compare; the connections' and the collectives' (comm/connect.h, comm/collective.h).
absl::StatusOr<int> BenchCommand(const std::vector<std::string>& arguments);

}  // namespace convene::worker
