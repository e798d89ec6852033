// Checks of the promises of every implementation of Collective, each as one rank can make it by
// itself: the same checks run over threads of one process and over processes with a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker::testing {

// The memory of a rank's data: that of its stream's device.
struct DataPlace {
  // At least one byte.
  std::function<std::shared_ptr<void>(size_t bytes)> allocate;
  // Between this memory and the host's, in any direction; after all that the stream holds, and done
  // on return.
  std::function<absl::Status(const void* from, void* to, size_t bytes)> copy;
};
DataPlace HostPlace();

struct RankUnderTest {
  Collective& group;
  Stream& stream;
  DataPlace place;
  // Sums are made in rank order; else in any order, the same on every rank.
  bool in_rank_order = true;
};

struct SuiteCheck {
  const char* behaviour;
  bool needs_messages;  // Send and Recv
  // All ranks of the group run it at the same time. Errors: Internal with the broken promise, or
  // the collective's.
  absl::Status (*run)(RankUnderTest& rank);
};

absl::Span<const SuiteCheck> CollectiveSuite();

}  // namespace convene::worker::testing
