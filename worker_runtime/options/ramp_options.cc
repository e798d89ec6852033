#include "worker_runtime/options/ramp_options.h"

#include "absl/strings/str_cat.h"
#include "worker_runtime/schedule/generators.h"

namespace convene::worker {
namespace {

bool HasRamp(const BatchRamp& ramp) {
  return ramp.start != 0 || ramp.increment != 0 || ramp.samples != 0;
}

}  // namespace

BatchRamp RampOf(const TrainOptions& options) {
  BatchRamp ramp = options.ramp;
  ramp.full = options.global_batch_size;
  return ramp;
}

absl::Status ValidateRamp(const TrainOptions& options) {
  const BatchRamp ramp = RampOf(options);
  if (!HasRamp(ramp)) return absl::OkStatus();
  const auto& [full, start, increment, samples] = ramp;
  const std::string text = absl::StrCat("rampup_batch_size ", start, ",", increment, ",", samples);
  if (start < 1 || start >= full) {
    return absl::InvalidArgumentError(absl::StrCat(
        text, " must begin with a batch from 1 to below global_batch_size, which is ", full));
  }
  if (increment < 1 || (full - start) % increment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(text, " must grow by a number that divides ",
                                                   full - start, ", which is global_batch_size ",
                                                   full, " less the first batch"));
  }
  if (samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat(text, " must grow over at least 1 sample"));
  }
  if (!options.cuda_graphs && options.pp_schedule_csv.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      text, " changes the number of micro batches, but ",
      options.cuda_graphs ? "CUDA graphs are" : absl::StrCat(options.pp_schedule, " is"),
      " made for one number: leave one of the two out"));
}

BatchCut CutOfBatch(const TrainOptions& options, const Layout& layout, int64_t batch) {
  BatchCut cut = CutOf(options, layout);
  cut.global_batch_size = batch;
  return cut;
}

std::map<int, Schedule> RampSchedules(const TrainOptions& options, const Layout& layout) {
  std::map<int, Schedule> schedules;
  const BatchRamp ramp = RampOf(options);
  if (!HasRamp(ramp)) return schedules;
  const int64_t most = MicrobatchCount(CutOf(options, layout));
  for (int64_t batch = ramp.start; batch < ramp.full; batch += ramp.increment) {
    const auto count = static_cast<int>(MicrobatchCount(CutOfBatch(options, layout, batch)));
    if (count == most) break;
    if (schedules.contains(count)) continue;
    schedules[count] =
        *MakeSchedule(options.pp_schedule, layout.pp, options.pp_virtual_stages, count);
  }
  return schedules;
}

}  // namespace convene::worker
