// Measures what a pipeline schedule costs beside its compute: threads as ranks, units that wait in
// place of a model, so that a machine with few cores shows the schedule and not itself.
//
//   bubble_bench [ranks [microbatches a rank [milliseconds a message]]]     8, 2 and 0 when not
//   stated
//
// A step's bubble is the share of ranks x time in which a rank computes nothing; beside it stands
// Simulate's for the same times, without messages. Where a message takes no time, the two columns
// should agree within a tenth. The last two columns show what early receives are for: a step whose
// receives are posted right before the pass that reads the message, and one pass earlier.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/simulate.h"
#include "worker_runtime/schedule/testing/cost.h"
#include "worker_runtime/testing/forwarding_collective.h"

namespace convene::worker {
namespace {

constexpr int kRanksMax = 64;
constexpr int kSteps = 3;
constexpr size_t kElements = 1024;
constexpr absl::Duration kUnit = absl::Milliseconds(20);
constexpr ComputeTimes kTimes;  // forward 1, backward 2, each half 1, in kUnit

double UnitsOfTime(ComputeKind kind) {
  switch (kind) {
    case ComputeKind::kForward:
      return kTimes.forward;
    case ComputeKind::kBackward:
      return kTimes.backward;
    case ComputeKind::kBackwardInput:
      return kTimes.backward_input;
    case ComputeKind::kBackwardWeight:
      return kTimes.backward_weight;
  }
  std::abort();
}

void WaitUntil(MonotonicTime end) {
  const absl::Duration left = end - Clock::Real().Now();
  if (left > absl::ZeroDuration()) Clock::Real().SleepFor(left);
}

// A pass takes its time, computes nothing, and writes down when it ended.
class WaitingStage final : public PipelineStage {
 public:
  explicit WaitingStage(const RankPlan& plan)
      : activations_(plan.activations.count, std::vector<float>(kElements)),
        gradients_(plan.gradients.count, std::vector<float>(kElements)) {}

  absl::Status Run(const StagePass& pass, Stream& /*stream*/) override {
    const MonotonicTime end = Clock::Real().Now() + UnitsOfTime(pass.compute.kind) * kUnit;
    WaitUntil(end);
    const bool is_forward = pass.compute.kind == ComputeKind::kForward;
    const int written = is_forward ? pass.output : pass.gradient;
    if (written < 0) return absl::OkStatus();
    const int64_t nanoseconds = absl::ToInt64Nanoseconds(end.since_epoch());
    std::memcpy((is_forward ? activations_ : gradients_)[written].data(), &nanoseconds,
                sizeof(nanoseconds));
    return absl::OkStatus();
  }
  Elements activation(int slot) override { return absl::MakeSpan(activations_[slot]); }
  Elements gradient(int slot) override { return absl::MakeSpan(gradients_[slot]); }

 private:
  std::vector<std::vector<float>> activations_, gradients_;
};

// Messages that take time from the moment when both ends are ready, as over NCCL.
class SlowMessages final : public testing::ForwardingCollective {
 public:
  SlowMessages(std::unique_ptr<Collective> base, absl::Duration message)
      : ForwardingCollective(std::move(base)), message_(message) {}

  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override {
    const auto pending = ForwardingCollective::StartRecv(data, peer, stream);
    if (pending.ok()) receives_[pending->id] = {Clock::Real().Now(), data.data};
    return pending;
  }
  absl::Status Wait(PendingMessage pending, Stream& stream) override {
    const absl::Status status = ForwardingCollective::Wait(pending, stream);
    const auto receive = receives_.extract(pending.id);
    if (!status.ok() || receive.empty()) return status;
    const auto [posted, data] = receive.mapped();
    int64_t nanoseconds;
    std::memcpy(&nanoseconds, data, sizeof(nanoseconds));
    const auto sent = MonotonicTime::FromEpoch(absl::Nanoseconds(nanoseconds));
    WaitUntil(std::max(posted, sent) + message_);
    return status;
  }

 private:
  const absl::Duration message_;
  std::map<uint64_t, std::pair<MonotonicTime, const void*>> receives_;
};

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bubble_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

// Seconds of the median step: from the moment when all ranks begin until the last one is done.
double MedianStep(const Schedule& schedule, int receives_ahead, absl::Duration message) {
  const int count = static_cast<int>(schedule.ranks.size());
  const auto plans = Lower(schedule, receives_ahead);
  CheckOk(plans.status());
  std::vector<int> ranks(count);
  for (int rank = 0; rank < count; ++rank) ranks[rank] = rank;
  auto group = LoopbackWorld(count).Group(ranks, "pp");
  for (auto& rank : group) rank = std::make_unique<SlowMessages>(std::move(rank), message);
  std::vector<double> seconds(kSteps);
  std::vector<Thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back(absl::StrCat("rank ", rank), [&, rank] {
      Stream stream = Stream::Cpu();
      WaitingStage stage((*plans)[rank]);
      PipelineExecutor executor(stage, *group[rank], (*plans)[rank]);
      for (int step = 0; step < kSteps; ++step) {
        CheckOk(group[rank]->Barrier(stream));
        const MonotonicTime begin = Clock::Real().Now();
        CheckOk(executor.Run(stream));
        CheckOk(group[rank]->Barrier(stream));
        if (rank == 0) seconds[step] = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
      }
    });
  }
  for (Thread& thread : threads) thread.Join();
  std::nth_element(seconds.begin(), seconds.begin() + kSteps / 2, seconds.end());
  return seconds[kSteps / 2];
}

void Measure(const char* name, int ranks, int microbatches, absl::Duration message) {
  const auto schedule = MakeSchedule(name, ranks, /*virtual_stages=*/0, microbatches);
  CheckOk(schedule.status());
  const auto timeline = Simulate(*schedule, kTimes);
  CheckOk(timeline.status());
  const Cost cost = CostOf(*schedule, *timeline, kTimes);
  double busy = 0;
  for (const double of_rank : cost.busy) busy += of_rank;
  const double late = MedianStep(*schedule, /*receives_ahead=*/0, message);
  const double step = MedianStep(*schedule, /*receives_ahead=*/1, message);
  const double bubble = 1 - busy * absl::ToDoubleSeconds(kUnit) / (ranks * step);
  std::printf("%-12s %10.1f %9.1f %% %9.1f %% %8.3f %12.1f %12.1f\n", name,
              cost.makespan * absl::ToDoubleMilliseconds(kUnit), cost.bubble_fraction * 100,
              bubble * 100, bubble / cost.bubble_fraction, late * 1e3, step * 1e3);
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  int ranks = 8;
  int rounds = 2;
  double message_ms = 0;
  if (argc > 4 || (argc > 1 && !absl::SimpleAtoi(argv[1], &ranks)) ||
      (argc > 2 && !absl::SimpleAtoi(argv[2], &rounds)) ||
      (argc > 3 && !absl::SimpleAtod(argv[3], &message_ms)) || ranks < 2 ||
      ranks > convene::worker::kRanksMax || rounds < 1 || !(message_ms >= 0 && message_ms <= 1e3)) {
    std::fprintf(stderr,
                 "usage: bubble_bench [ranks, 2 to %d [microbatches a rank, 1 or more "
                 "[milliseconds a message, 0 to 1000]]]\n",
                 convene::worker::kRanksMax);
    return 64;
  }
  std::printf("%d ranks, %d microbatches, a forward of %s, a message of %g ms\n", ranks,
              ranks * rounds, absl::FormatDuration(convene::worker::kUnit).c_str(), message_ms);
  std::printf("%-12s %10s %11s %11s %8s %12s %12s\n", "schedule", "paper, ms", "paper", "measured",
              "ratio", "late recv, ms", "early, ms");
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    convene::worker::Measure(name, ranks, ranks * rounds, absl::Milliseconds(message_ms));
  }
  return 0;
}
