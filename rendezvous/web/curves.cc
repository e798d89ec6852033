#include "rendezvous/web/curves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace convene::rendezvous {
namespace {

constexpr double kUntold = std::numeric_limits<double>::quiet_NaN();

// The mean of `mean` over `weight` samples and of `value` over `more`; an untold one has no weight.
double Mean(double mean, int64_t weight, double value, int64_t more) {
  if (std::isnan(mean)) return value;
  if (std::isnan(value)) return mean;
  return mean + (value - mean) * static_cast<double>(more) / static_cast<double>(weight + more);
}

// `point` of `weight` samples takes in the `more` later ones of `next`.
void Merge(const CurvePoint& next, int64_t weight, int64_t more, CurvePoint* point) {
  point->time_seconds = next.time_seconds;
  point->step = next.step;
  point->loss = Mean(point->loss, weight, next.loss, more);
  point->tokens_per_second = Mean(point->tokens_per_second, weight, next.tokens_per_second, more);
  point->steps_per_second = Mean(point->steps_per_second, weight, next.steps_per_second, more);
}

bool IsOver(const JobView& view) { return view.phase == "succeeded" || view.phase == "failed"; }

}  // namespace

TrainingSample SampleOf(const JobView& view) {
  TrainingSample sample;
  sample.is_running = view.phase == "running";
  sample.epoch = view.epoch;
  double loss_sum = 0, mfu_sum = 0;
  int losses = 0, utilizations = 0;
  for (const NodeView& node : view.nodes) {
    if (node.group_rank < 0) continue;
    for (const RankProgress& rank : node.ranks) {
      if (rank.loss != 0) {
        loss_sum += rank.loss;
        sample.loss = loss_sum / ++losses;
      }
      if (rank.mfu > 0) {
        mfu_sum += rank.mfu;
        sample.mfu = mfu_sum / ++utilizations;
      }
      if (rank.tokens_per_second > 0) {
        sample.tokens_per_second = sample.tokens_per_second.value_or(0) + rank.tokens_per_second;
      }
    }
    if (!node.progress.has_value()) continue;
    const WorkerProgress& progress = *node.progress;
    sample.step = std::min(sample.step.value_or(progress.step), progress.step);
    sample.is_checkpointing = sample.is_checkpointing || progress.phase == "checkpoint";
    if (progress.steps_per_second <= 0) continue;
    sample.steps_per_second = std::min(sample.steps_per_second.value_or(progress.steps_per_second),
                                       progress.steps_per_second);
  }
  return sample;
}

void Curve::Add(const CurvePoint& sample) {
  if (!points_.empty() && samples_in_last_ < samples_per_point_) {
    Merge(sample, samples_in_last_, 1, &points_.back());
    ++samples_in_last_;
    return;
  }
  if (points_.size() == kMostPoints) {
    for (size_t i = 0; i < kMostPoints / 2; ++i) {
      CurvePoint point = points_[2 * i];
      Merge(points_[2 * i + 1], samples_per_point_, samples_per_point_, &point);
      points_[i] = point;
    }
    points_.resize(kMostPoints / 2);
    samples_per_point_ *= 2;
  }
  points_.push_back(sample);
  samples_in_last_ = 1;
}

void Goodput::Add(MonotonicTime now, const TrainingSample& sample) {
  if (!begun_.has_value()) {
    begun_ = step_seen_ = now;
  }
  if (was_checkpointing_) in_checkpoints_ += now - last_;
  last_ = now;
  was_checkpointing_ = sample.is_checkpointing;
  if (sample.epoch != epoch_ || !sample.is_running) {
    epoch_ = sample.epoch;
    step_.reset();  // the way to an epoch's first step is no step
  }
  if (!sample.is_running || !sample.step.has_value() || sample.step == step_) return;
  const bool is_new = !highest_.has_value() || *sample.step > *highest_;
  if (is_new && step_.has_value()) {
    // Steps between `step_` and the highest one were made before.
    const int64_t before = std::max(*step_, *highest_);
    const double new_share =
        static_cast<double>(*sample.step - before) / static_cast<double>(*sample.step - *step_);
    const absl::Duration made = now - step_seen_ - in_checkpoints_;
    kept_ += std::max(made, absl::ZeroDuration()) * new_share;
  }
  if (is_new) highest_ = sample.step;
  step_ = sample.step;
  step_seen_ = now;
  in_checkpoints_ = absl::ZeroDuration();
}

std::optional<double> Goodput::share() const {
  if (!highest_.has_value() || last_ <= *begun_) return std::nullopt;
  return absl::FDivDuration(kept_, last_ - *begun_);
}

void JobCurves::Add(MonotonicTime now, absl::Time wall, const std::vector<JobView>& views) {
  std::set<std::string> known;
  for (const JobView& view : views) {
    known.insert(view.job_id);
    const auto found = jobs_.find(view.job_id);
    const bool is_known = found != jobs_.end();
    if (IsOver(view)) {
      if (is_known) found->second.is_over = true;
      continue;
    }
    // A run may end and the next one of its name begin between two looks.
    const bool is_same_run =
        is_known && !found->second.is_over && found->second.floor == view.floor;
    Job& job = jobs_[view.job_id];
    if (!is_same_run) job = {.floor = view.floor};
    const TrainingSample sample = SampleOf(view);
    job.goodput.Add(now, sample);
    if (!sample.step.has_value()) continue;
    job.curve.Add({.time_seconds = absl::ToDoubleSeconds(wall - absl::UnixEpoch()),
                   .step = *sample.step,
                   .loss = sample.loss.value_or(kUntold),
                   .tokens_per_second = sample.tokens_per_second.value_or(kUntold),
                   .steps_per_second = sample.steps_per_second.value_or(kUntold)});
  }
  std::erase_if(jobs_, [&](const auto& job) { return known.count(job.first) == 0; });
}

const JobCurves::Job* JobCurves::Find(const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  return found == jobs_.end() ? nullptr : &found->second;
}

std::optional<double> GoodputOf(const std::string& job_id, const CurvesOf& curves_of) {
  std::optional<double> share;
  curves_of(job_id, [&](const JobCurves::Job* job) {
    if (job != nullptr) share = job->goodput.share();
  });
  return share;
}

}  // namespace convene::rendezvous
