// Two sources as one: what is chosen, and behind it what is rejected.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

// Document i of `chosen` is the better answer, and document i of `rejected` the worse one, of pair
// i; of n pairs the result has the documents i and n + i. InvalidArgument: other numbers of
// documents, or the same tokens in both.
absl::StatusOr<std::shared_ptr<const TokenSource>> JoinPairs(
    std::shared_ptr<const TokenSource> chosen, std::shared_ptr<const TokenSource> rejected);

}  // namespace convene::worker
