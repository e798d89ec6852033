#include "worker_runtime/trainer/step_facts.h"

#include <algorithm>
#include <utility>

#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/contract/progress_page.h"

namespace convene::worker {

std::unique_ptr<ProgressWriter> OpenProgress(const std::string& path) {
  constexpr uint32_t kFlags =
      contract::kProgressDumpsOnSignalFlag | contract::kProgressTellsEveryPhaseFlag;
  auto writer = ProgressWriter::Open(path, kFlags, Clock::Real());
  if (!writer.ok()) {
    spdlog::warn("no progress page, so a hang goes unnoticed: {}",
                 std::string(writer.status().message()));
    writer = ProgressWriter::Open("", 0, Clock::Real());
  }
  return *std::move(writer);
}

AwaitedReports::AwaitedReports(ProgressWriter& progress) {
  FlightRecorder::OfProcess().Observe([&progress](const AwaitedOperation* awaited) {
    if (awaited == nullptr) return progress.TellAwaited(nullptr);
    const AwaitedRank told = {.rank = awaited->global_rank,
                              .number = awaited->sequence,
                              .operation = awaited->operation,
                              .group = awaited->group};
    progress.TellAwaited(&told);
  });
}

AwaitedReports::~AwaitedReports() { FlightRecorder::OfProcess().Observe(nullptr); }

StepFacts::StepFacts(const Layout& layout, int rank, Device& device, ProgressWriter& progress)
    : ranks_(layout.world_size()), progress_(progress) {
  if (device.kind() != DeviceKind::kCpu) sample_.emplace(device);
  progress_.facts().tells_times = true;
  // Stages of a pipeline differ in work; all ranks of one stage do the same.
  progress_.facts().place = static_cast<uint32_t>(CoordinateOf(layout, rank).pp) + 1;
}

void StepFacts::Begin() {
  own_ = OwnTime();
  waited_ = ThreadWaited();
  data_ = progress_.facts().data;
}

void StepFacts::Done(const StepResult& result, absl::Duration time, int64_t tokens) {
  ProgressFacts& facts = progress_.facts();
  const absl::Duration data = facts.data - std::exchange(data_, facts.data);
  if (!sample_.has_value()) {
    facts.compute += own_.Get() - data;
    facts.wait += ThreadWaited() - waited_;
  } else if (const std::optional<double> share = sample_->Done(time); share.has_value()) {
    const absl::Duration wait = *share * time;
    facts.compute += std::max(time - wait - data, absl::ZeroDuration());
    facts.wait += wait;
  }
  if (result.counted_targets > 0) facts.loss = result.loss;
  facts.tokens = tokens / ranks_;
}

}  // namespace convene::worker
