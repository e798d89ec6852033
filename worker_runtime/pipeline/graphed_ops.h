// Groups of ops that the host queues as one CUDA graph each, instead of op by op: small models and
// small microbatches leave gaps on the GPU where the host cannot queue fast enough.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

// The first run of a group goes op by op, since ops build plans at their first use; the second run
// is captured and launched; later runs launch the graph. Same kernels, same order, same bits.
//
// When a capture fails, one warning says why, and from then on everything goes op by op.
//
// Not thread-safe.
class GraphedOps {
 public:
  // A group's name, the same in every step.
  struct Name {
    Compute compute;
    int unit = -1;  // of the compute's chunk; -1: the whole pass

    auto AsTuple() const {
      return std::tuple(compute.kind, compute.chunk, compute.microbatch, unit);
    }
    friend bool operator<(const Name& a, const Name& b) { return a.AsTuple() < b.AsTuple(); }
  };

  // Borrows the device.
  explicit GraphedOps(Device& device) : device_(device) {}

  // REQUIRES: `queue_ops` queues nothing but ops of `stream`, with the same addresses and shapes in
  // every step; what else it does, it does in the first run. Errors: those of queue_ops.
  absl::Status Run(const Name& name, Stream& stream, absl::FunctionRef<absl::Status()> queue_ops);

 private:
  struct Captured {
    bool has_run = false;
    std::unique_ptr<Graph> graph;  // null: not yet
  };

  Device& device_;
  std::map<Name, Captured> captured_;
  bool has_failed_ = false;
};

}  // namespace convene::worker
