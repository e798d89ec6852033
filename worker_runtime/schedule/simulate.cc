#include "worker_runtime/schedule/simulate.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

double TimeOf(ComputeKind kind, const ComputeTimes& times) {
  switch (kind) {
    case ComputeKind::kForward:
      return times.forward;
    case ComputeKind::kBackward:
      return times.backward;
    case ComputeKind::kBackwardInput:
      return times.backward_input;
    case ComputeKind::kBackwardWeight:
      return times.backward_weight;
  }
  CONVENE_CHECK(false);
}

namespace {

class Simulator {
 public:
  Simulator(const Schedule& schedule, const ComputeTimes& times)
      : schedule_(schedule), times_(times), ranks_(schedule.ranks.size()), clock_(ranks_, 0) {
    timeline_.passes.assign(schedule.placement.size(), std::vector<Passes>(schedule.microbatches));
    timeline_.start.resize(ranks_);
  }

  absl::StatusOr<Timeline> Run() {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      for (size_t position = 0; position < schedule_.ranks[rank].size(); ++position) {
        CONVENE_RETURN_IF_ERROR(Enter(rank, position));
      }
    }
    CONVENE_RETURN_IF_ERROR(CheckComplete());
    // A time depends on the own rank's and the input's times alone, so the order of ranks is free.
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_; ++rank) {
        while (Step(rank)) moved = true;
      }
    }
    CONVENE_RETURN_IF_ERROR(CheckFinished());
    return std::move(timeline_);
  }

 private:
  // Takes down where a compute stands, and checks what does not depend on other ranks.
  absl::Status Enter(size_t rank, size_t position) {
    const auto [kind, chunk, microbatch] = schedule_.ranks[rank][position];
    const int chunks = static_cast<int>(schedule_.placement.size());
    if (chunk < 0 || chunk >= chunks || microbatch < 0 || microbatch >= schedule_.microbatches) {
      return Wrong(rank, position, "the schedule has chunks 0 to ", chunks - 1,
                   " and microbatches 0 to ", schedule_.microbatches - 1);
    }
    if (schedule_.placement[chunk] != static_cast<int>(rank)) {
      return Wrong(rank, position, "rank ", schedule_.placement[chunk], " holds chunk ", chunk);
    }
    const bool is_forward = kind == ComputeKind::kForward;
    const bool is_weight = kind == ComputeKind::kBackwardWeight;
    Passes& passes = timeline_.passes[chunk][microbatch];
    int& own = is_forward ? passes.forward : is_weight ? passes.weight : passes.input;
    if (own >= 0) {
      return Wrong(rank, position, "action ", own, " has done it; take one of them out");
    }
    if (!is_forward && (is_weight ? passes.input : passes.forward) < 0) {
      const ComputeKind first = is_weight ? ComputeKind::kBackwardInput : ComputeKind::kForward;
      return Wrong(rank, position, "put ", ToString({first, chunk, microbatch}), " before it");
    }
    own = static_cast<int>(position);
    if (kind == ComputeKind::kBackward) passes.weight = own;
    trains_ = trains_ || !is_forward;
    return absl::OkStatus();
  }

  absl::Status CheckComplete() const {
    for (size_t chunk = 0; chunk < timeline_.passes.size(); ++chunk) {
      for (int microbatch = 0; microbatch < schedule_.microbatches; ++microbatch) {
        const Passes& passes = timeline_.passes[chunk][microbatch];
        if (passes.forward >= 0 && (passes.weight >= 0 || !trains_)) continue;
        const ComputeKind missing = passes.forward < 0 ? ComputeKind::kForward
                                    : passes.input < 0 ? ComputeKind::kBackward
                                                       : ComputeKind::kBackwardWeight;
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", schedule_.placement[chunk], " ends without ",
                         ToString({missing, static_cast<int>(chunk), microbatch})));
      }
    }
    return absl::OkStatus();
  }

  // When what the compute reads is there; nullopt while that is not known.
  std::optional<double> InputTime(const Compute& compute) const {
    const int source = SourceOf(schedule_, compute);
    if (source < 0) return 0;
    const int rank = schedule_.placement[source];
    const int position = timeline_.passes[source][compute.microbatch].Along(compute.kind);
    if (position >= static_cast<int>(timeline_.start[rank].size())) return std::nullopt;
    const double end =
        timeline_.start[rank][position] + TimeOf(schedule_.ranks[rank][position].kind, times_);
    return end + (rank == schedule_.placement[compute.chunk] ? 0 : times_.message);
  }

  // Does the next compute of `rank`; false at the end, and when its input is not there yet.
  bool Step(size_t rank) {
    const size_t position = timeline_.start[rank].size();
    if (position == schedule_.ranks[rank].size()) return false;
    const Compute& compute = schedule_.ranks[rank][position];
    const std::optional<double> input = InputTime(compute);
    if (!input.has_value()) return false;
    timeline_.start[rank].push_back(std::max(clock_[rank], *input));
    clock_[rank] = timeline_.start[rank].back() + TimeOf(compute.kind, times_);
    return true;
  }

  absl::Status CheckFinished() const {
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const size_t position = timeline_.start[rank].size();
      if (position == schedule_.ranks[rank].size()) continue;
      const Compute& waiting = schedule_.ranks[rank][position];
      const int source = SourceOf(schedule_, waiting);
      const int other = schedule_.placement[source];
      const int awaited = timeline_.passes[source][waiting.microbatch].Along(waiting.kind);
      return Wrong(rank, position, "the ranks wait for each other: it needs ",
                   Place(other, awaited), ", but that rank waits at ",
                   Place(other, timeline_.start[other].size()), "; put one of them further ahead");
    }
    return absl::OkStatus();
  }

  // "rank 1, action 3 (2B0)".
  std::string Place(size_t rank, size_t position) const {
    return absl::StrCat("rank ", rank, ", action ", position, " (",
                        ToString(schedule_.ranks[rank][position]), ")");
  }

  template <typename... Why>
  absl::Status Wrong(size_t rank, size_t position, const Why&... why) const {
    return absl::InvalidArgumentError(absl::StrCat(Place(rank, position), ": ", why...));
  }

  const Schedule& schedule_;
  const ComputeTimes times_;
  const size_t ranks_;
  bool trains_ = false;        // something goes backward
  std::vector<double> clock_;  // [rank]
  Timeline timeline_;          // `start` grows as the ranks go on
};

}  // namespace

absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const ComputeTimes& times) {
  return Simulator(schedule, times).Run();
}

}  // namespace convene::worker
