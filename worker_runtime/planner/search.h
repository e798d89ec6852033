// PURE. The layouts of a job on a cluster, from the fastest to the slowest that fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/planner/memory.h"
#include "worker_runtime/planner/step_time.h"

namespace convene::worker {

// The libraries, the communicators and the rest of the process take the other part.
inline constexpr double kUsableShare = 0.9;
// Bytes of a GPU that MemoryParts::Total may take: kUsableShare of it, or less where NCCL's buffers
// are larger than usual. Beside these there must be room for the CUDA context and for the
// libraries' workspaces: 0.03 of the memory.
double UsableBytes(const MemoryParts& memory, const Cluster& cluster);

// The steps of the ladder from the simplest way of training to the most complex one. A layout
// stands on the first of these that describes it.
enum class Rung {
  kCopies,         // DDP: every GPU has all (ZeRO-0)
  kZero1,          // the optimizer's state is sharded
  kZero2,          // gradients too
  kZero3,          // parameters too
  kExperts,        // ep, whatever ZeRO stage
  kTensor,         // tp, whatever ZeRO stage
  kPipeline,       // pp
  kTensorPipeline  // both
};
inline constexpr int kRungs = 8;
Rung RungOf(const Strategy& strategy);

struct Estimate {
  Strategy strategy;
  MemoryParts memory;
  StepTime time;

  double step_seconds() const { return time.total; }
};

// The best of one rung, and what the rung's leanest layout would need where none fits.
struct RungResult {
  std::optional<Estimate> best;
  std::optional<Estimate> leanest;  // the least memory; absent: no layout is legal
};

struct Plans {
  std::vector<Estimate> ranked;   // that fit, the best first: each pp, tp, cp, ep once,
                                  // with ZeRO-3 and without
  std::vector<RungResult> rungs;  // [Rung]
  int64_t tried = 0;
};

// Parts of a strategy that the search may not change; nullopt: anything.
struct Wishes {
  std::optional<int> tp, pp, cp, ep, dp_replicate, zero_stage, micro_batch_size, virtual_stages;
  std::optional<bool> zero_bubble;
  std::optional<Recompute> recompute;
};

// Whether the trainer takes the layout: ValidateModel; ranks that hold whole blocks; a sequence
// that comes out even; samples for each data-parallel rank; arrays whose sizes are int.
bool Legal(const PlanJob& job, const Strategy& strategy, ModelCounts& counts);

// By what Search ranks: the step time, where each doubling of tp, pp, cp or ep has to save 2 % of
// it, and each stage of ZeRO 0.2 %.
double Score(const Estimate& estimate);

Estimate EstimateOf(const PlanJob& job, const Cluster& cluster, const Strategy& strategy,
                    ModelCounts& counts, const Efficiency& efficiency = {});

// Of all legal layouts of the cluster's GPUs those that fit in UsableBytes, at most `keep` of them.
// InvalidArgument where no layout is legal: the text says why. The result has no ranked layout
// where none fits: `rungs` says what each would need.
absl::StatusOr<Plans> Search(const PlanJob& job, const Cluster& cluster, const Wishes& wishes = {},
                             size_t keep = 10, const Efficiency& efficiency = {});

}  // namespace convene::worker
