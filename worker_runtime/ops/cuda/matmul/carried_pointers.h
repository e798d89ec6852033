// Addresses from the host to the GPU's memory, with a launch instead of a copy: a copy of memory
// that is not pinned may wait for the stream.
#pragma once

#include "absl/types/span.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker::cuda {

// to[i] = pointers[i], in the order of the stream. `to` is in the GPU's memory.
void StorePointers(absl::Span<const void* const> pointers, const void** to, Stream& stream);

}  // namespace convene::worker::cuda
