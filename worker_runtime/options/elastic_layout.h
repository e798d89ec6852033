// PURE. The layout of a job with so many workers, and the reason for it: --elastic-layout.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/planner/hardware.h"

namespace convene::worker {

struct LayoutDecision {
  Layout layout;  // of world_size workers or fewer; the ranks after them are spares
  // One line for the log: the layout, the workers that train, what was asked for, and the rule.
  // Empty where all workers train in the layout that was asked for.
  std::string why;
  // Whether the hardware has a say in it: a caller that gave none asks again with it.
  bool depends_on_hardware = false;
};

struct RankMemory {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  // beside a GPU; on a CPU all counts as the device's
};

// The hardware of the ranks. All ranks give the same.
struct JobHardware {
  RankMemory has;  // of the rank that has the least, of each
  // The most that a rank of the layout takes, of each. Called for legal layouts alone.
  absl::FunctionRef<RankMemory(const Layout&)> planned;
  Cluster cluster = UsualCluster("cpu", 1);  // `gpus` does not count
};

// `keep`: tp, pp and cp stay as asked, with as many data-parallel ranks as there is room for, at
// most dp_size. Where shards and copies were asked for, each copy that is left has all its shards:
// first the copies become fewer, then the shards of the last one. A layout with fewer data-parallel
// ranks than were asked for is taken only where `job_has_begun`, because a node may be lost then;
// before that it is a mistake. A schedule file (pp_schedule) has a fixed number of micro batches:
// then fewer data-parallel ranks may be taken than there is room for.
//
// Once the job has begun, `keep` takes the layout of `best` where tp, pp and cp cannot be kept: too
// few workers are left for one replica, no such layout is legal, or there is no memory for it.
// Where `best` has none either, a legal layout that is kept is tried all the same. A layout with
// all the data-parallel ranks that were named has trained, so its memory is not looked at. One with
// fewer may take as much as a layout of `best`. Where none were named, nobody knows whether it has
// trained: it may take all the memory that there is.
//
// `best`, at every start: of the legal layouts that the memory has room for the one that `convene
// plan` would rank first, by the planner's Score on this hardware (planner/search.h). Scores within
// a thousandth count as equal: of several such layouts the one in which the most workers train;
// then the one that is nearest to what was asked for, in tp, then in pp, then in cp; then the one
// with the smaller degrees. A layout that the planner has no time for comes behind all others.
// Where `hardware` is null, no memory bounds it, and the cluster is JobHardware's default.
//
// The layout is legal: ValidateOptions says OK. InvalidArgument, with the legal values that are
// near, where no layout is; ResourceExhausted where none fits in memory. The same on every rank
// that gives the same arguments. REQUIRES: world_size >= 1; sizes as LoadOptions checks them.
absl::StatusOr<LayoutDecision> DecideLayout(const TrainOptions& options, int world_size,
                                            bool job_has_begun,
                                            const JobHardware* hardware = nullptr);

// The workers for which the options ask: at least one replica of the model, and as many copies and
// shards as are named. May be beyond any int.
double AskedWorkers(const TrainOptions& options);

}  // namespace convene::worker
