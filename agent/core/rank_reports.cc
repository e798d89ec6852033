#include "agent/core/rank_reports.h"

#include <algorithm>

namespace convene::agent {
namespace {

constexpr int64_t kMostSteps = 1 << 30;

// A sum that falls is no sum: the worker's page is wrong, or it began anew.
double MeanMs(absl::Duration now, absl::Duration before, int64_t steps) {
  return std::max(0.0, absl::ToDoubleMilliseconds(now - before)) / static_cast<double>(steps);
}

// Tells the steps from `since` to `now`. REQUIRES: there is one.
void AddMeans(const WorkerReading& since, const WorkerReading& now,
              rendezvous::RankProgress& told) {
  const int64_t steps = now.step - since.step;
  told.steps = static_cast<int>(std::min(steps, kMostSteps));
  const WorkerTimes& times = now.times;
  told.compute_ms = MeanMs(times.compute, since.times.compute, steps);
  told.wait_ms = MeanMs(times.wait, since.times.wait, steps);
  told.data_ms = MeanMs(times.data, since.times.data, steps);
  told.checkpoint_ms = MeanMs(times.checkpoint, since.times.checkpoint, steps);
  const double seconds = absl::ToDoubleSeconds(now.changed_at - since.changed_at);
  if (seconds <= 0) return;
  told.steps_per_second = static_cast<double>(steps) / seconds;
  // A worker that resumes tells its step before its tokens: the first sum has those of all steps.
  if (since.tokens == 0 && since.step > 0) return;
  told.tokens_per_second =
      static_cast<double>(std::max<int64_t>(0, now.tokens - since.tokens)) / seconds;
}

}  // namespace

std::vector<rendezvous::RankProgress> RankReports::Report(
    const std::map<int, WorkerReading>& readings, MonotonicTime now) {
  reported_ = now;
  std::vector<rendezvous::RankProgress> reports;
  for (const auto& [local_rank, reading] : readings) {
    if (static_cast<int>(reports.size()) == rendezvous::kMostRanksTold) break;
    const auto [found, is_new] = workers_.try_emplace(local_rank);
    Worker& worker = found->second;
    rendezvous::RankProgress& told = worker.told;
    told.steps = 0;
    if (!is_new && reading.step > worker.since.step) AddMeans(worker.since, reading, told);
    // The first steps of an epoch, and those read from a checkpoint, are counted from here.
    if (is_new || reading.step != worker.since.step) worker.since = reading;
    told.local_rank = local_rank;
    told.step = reading.step;
    told.phase = reading.phase;
    told.loss = reading.loss;
    told.memory_bytes = reading.memory_bytes;
    told.memory_peak_bytes = reading.memory_peak_bytes;
    told.place = reading.place;
    told.mfu = reading.mfu;
    // Of a worker that makes steps it is a wait of an instant; of a stopped process it is a wait
    // that may have ended long ago.
    told.awaits = is_new || told.steps > 0 || reading.is_stopped ? "" : reading.awaits;
    reports.push_back(told);
  }
  return reports;
}

}  // namespace convene::agent
