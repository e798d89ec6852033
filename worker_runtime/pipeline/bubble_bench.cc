// Measures what a pipeline schedule costs beside its compute: threads as ranks, units that wait in
// place of a model, so that a machine with few cores shows the schedule and not itself.
//
//   bubble_bench [ranks [microbatches a rank]]        8 and 2 when not stated
//
// A step's bubble is the share of ranks x time in which a rank computes nothing; beside it stands
// Simulate's for the same times. The two columns should agree within a tenth.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/simulate.h"

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

// A pass takes its time and computes nothing.
class WaitingStage final : public PipelineStage {
 public:
  explicit WaitingStage(const RankPlan& plan)
      : activations_(plan.activations.count, std::vector<float>(kElements)),
        gradients_(plan.gradients.count, std::vector<float>(kElements)) {}

  absl::Status Run(const StagePass& pass, Stream& /*stream*/) override {
    const MonotonicTime end = Clock::Real().Now() + UnitsOfTime(pass.compute.kind) * kUnit;
    MutexLock lock(&mutex_);
    for (absl::Duration left; (left = end - Clock::Real().Now()) > absl::ZeroDuration();) {
      never_.WaitFor(&mutex_, left);
    }
    return absl::OkStatus();
  }
  Elements activation(int slot) override { return absl::MakeSpan(activations_[slot]); }
  Elements gradient(int slot) override { return absl::MakeSpan(gradients_[slot]); }

 private:
  std::vector<std::vector<float>> activations_, gradients_;
  Mutex mutex_;
  CondVar never_;
};

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bubble_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

// Seconds of the median step: from the moment when all ranks begin until the last one is done.
double MedianStep(const Schedule& schedule) {
  const int count = static_cast<int>(schedule.ranks.size());
  const auto plans = Lower(schedule, /*receives_ahead=*/0);
  CheckOk(plans.status());
  std::vector<int> ranks(count);
  for (int rank = 0; rank < count; ++rank) ranks[rank] = rank;
  const auto group = LoopbackWorld(count).Group(ranks, "pp");
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

void Measure(const char* name, int ranks, int microbatches) {
  const auto schedule = MakeSchedule(name, ranks, /*virtual_stages=*/0, microbatches);
  CheckOk(schedule.status());
  const auto timeline = Simulate(*schedule, kTimes);
  CheckOk(timeline.status());
  double busy = 0;
  for (const double of_rank : timeline->busy) busy += of_rank;
  const double step = MedianStep(*schedule);
  const double bubble = 1 - busy * absl::ToDoubleSeconds(kUnit) / (ranks * step);
  std::printf("%-12s %10.1f %10.1f %9.1f %% %9.1f %% %8.3f\n", name,
              timeline->makespan * absl::ToDoubleMilliseconds(kUnit), step * 1e3,
              timeline->bubble_fraction * 100, bubble * 100, bubble / timeline->bubble_fraction);
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  int ranks = 8;
  int rounds = 2;
  if (argc > 3 || (argc > 1 && !absl::SimpleAtoi(argv[1], &ranks)) ||
      (argc > 2 && !absl::SimpleAtoi(argv[2], &rounds)) || ranks < 2 ||
      ranks > convene::worker::kRanksMax || rounds < 1) {
    std::fprintf(stderr, "usage: bubble_bench [ranks, 2 to %d [microbatches a rank, 1 or more]]\n",
                 convene::worker::kRanksMax);
    return 64;
  }
  std::printf("%d ranks, %d microbatches, a forward of %s\n", ranks, ranks * rounds,
              absl::FormatDuration(convene::worker::kUnit).c_str());
  std::printf("%-12s %10s %10s %11s %11s %8s\n", "schedule", "paper, ms", "step, ms", "paper",
              "measured", "ratio");
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    convene::worker::Measure(name, ranks, ranks * rounds);
  }
  return 0;
}
