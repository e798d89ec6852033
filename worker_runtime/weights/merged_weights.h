// Weights with their adapters added: W + scale B A.
#pragma once

#include "absl/status/statusor.h"
#include "worker_runtime/weights/adapter.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {

// The result has the shape of `base`. Sums are made in fp32, element by element, so a piece of a
// tensor has the same bits however it is cut. InvalidArgument, with the adapter's path: it is no
// adapter of this model.
absl::StatusOr<Weights> MergeAdapter(Weights base, Adapter adapter);

}  // namespace convene::worker
