#include "worker_runtime/trainer/op_reports.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/profile/comm_gather.h"
#include "worker_runtime/profile/comm_table.h"

namespace convene::worker {
namespace {

// Not counted: the first steps also build kernels, choose algorithms and open connections.
constexpr int64_t kUncountedSteps = 3;
// The most ops of a step that each stream keeps.
constexpr size_t kSpansMax = 1 << 18;
// The most calls of a rank in a trace, and of all ranks: some 12 MB and 240 MB of text.
constexpr size_t kTraceCallsMax = 100'000;
constexpr size_t kTraceCallsOfAllMax = 2'000'000;

// "pp 1, dp 0": the axes that have more than one rank.
std::string PlaceText(const Layout& layout, int rank) {
  const Coordinate at = CoordinateOf(layout, rank);
  std::vector<std::string> axes;
  for (const auto& [name, size, place] :
       {std::tuple("pp", layout.pp, at.pp), std::tuple("dp", layout.dp, at.dp),
        std::tuple("cp", layout.cp, at.cp), std::tuple("tp", layout.tp, at.tp)}) {
    if (size > 1) axes.push_back(absl::StrCat(name, " ", place));
  }
  return absl::StrJoin(axes, ", ");
}

}  // namespace

OpReports::OpReports(const TrainOptions& options, const Layout& layout, Collective& host,
                     Reporter* reporter, ProgressWriter& progress, Device& device,
                     int64_t first_step)
    : options_(options),
      layout_(layout),
      host_(host),
      reporter_(reporter),
      progress_(progress),
      device_(device),
      counted_from_(std::min(first_step + kUncountedSteps, options.steps - 1)) {
  if (!options.trace.has_value()) return;
  const StepRange wanted = *options.trace;
  if (first_step < wanted.last) {
    traced_ = {.first = std::max(wanted.first, first_step + 1), .last = wanted.last};
  } else if (reporter_ != nullptr) {
    reporter_->Say(absl::StrCat("no trace: the steps to ", wanted.last, " were done before"));
  }
}

absl::Status OpReports::Open() {
  if (!traced_.has_value() || reporter_ == nullptr) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<TraceFile>> file = TraceFile::Open(options_.trace_file);
  if (!file.ok()) {
    return Annotate(file.status(), "trace_file: give one in a folder that can be written to");
  }
  trace_file_ = *std::move(file);
  return absl::OkStatus();
}

bool OpReports::PausesAfter(int64_t step) const {
  if (traced_.has_value() && (step + 1 == traced_->first || step == traced_->last)) return true;
  return (options_.profile || options_.comm_log) && step == counted_from_;
}

absl::Status OpReports::Watch(int64_t done) {
  const int64_t step = done + 1;
  const bool begins_count = Counts(step) && done == counted_from_;
  const bool begins_trace = traced_.has_value() && step == traced_->first;
  if (begins_count || begins_trace) {
    CONVENE_RETURN_IF_ERROR(Synchronize());
    Take(done);
    if (begins_count || profile_ == nullptr) profile_ = std::make_unique<StepProfile>(device_);
    // Again, too: a GPU's clock is compared with the host's close to the steps of the trace.
    if (Traces(step) || options_.comm_log) profile_->KeepSpans(kSpansMax);
  }
  if (profile_ != nullptr) profile_->Watch(Counts(step) || Traces(step));
  return absl::OkStatus();
}

void OpReports::Pause() {
  if (profile_ != nullptr) profile_->Watch(false);
}

void OpReports::Take(int64_t step) {
  if (profile_ == nullptr) return;
  std::vector<OpSpans> streams = profile_->TakeSpans();
  if (options_.comm_log && Counts(step)) comm_log_.Add(streams);
  if (!Traces(step)) return;
  const size_t most =
      std::min(kTraceCallsMax, kTraceCallsOfAllMax / static_cast<size_t>(host_.size()));
  for (size_t i = 0; i < streams.size(); ++i) {
    if (trace_.streams.size() == i) trace_.streams.push_back({.name = StepProfile::kStreams[i]});
    std::vector<OpSpan>& taken = streams[i].spans;
    OpSpans& kept = trace_.streams[i].calls;
    const size_t room = std::min(taken.size(), most - trace_calls_);
    kept.spans.insert(kept.spans.end(), taken.begin(), taken.begin() + room);
    kept.left_out += streams[i].left_out + static_cast<int64_t>(taken.size() - room);
    trace_calls_ += room;
  }
}

absl::Status OpReports::StepDone(int64_t step, MonotonicTime now, absl::Duration step_time,
                                 bool is_update_late) {
  if (profile_ == nullptr) return absl::OkStatus();
  const bool ends_trace = traced_.has_value() && step == traced_->last;
  if (Traces(step)) trace_.steps.push_back({step, now - step_time, now});
  // The update's ops are counted, so their time must be, and in this step.
  if (is_update_late || ends_trace) CONVENE_RETURN_IF_ERROR(Synchronize());
  if (Counts(step)) counted_time_ += step_time;
  if (Counts(step) && is_update_late) counted_time_ += clock_.Now() - now;
  Take(step);
  return ends_trace ? WriteTrace() : absl::OkStatus();
}

absl::Status OpReports::WriteTrace() {
  const StepRange steps{.first = trace_.steps.front().step, .last = trace_.steps.back().step};
  progress_.Tell(steps.last, "trace");
  if (!HasTables()) profile_.reset();
  traced_.reset();
  trace_.rank = host_.rank();
  trace_.place = PlaceText(layout_, host_.rank());
  CONVENE_RETURN_IF_ERROR(GatherTrace(
      trace_, clock_, host_, [this](absl::string_view piece) { trace_file_->Write(piece); }));
  trace_ = {};
  if (reporter_ == nullptr) return absl::OkStatus();
  const absl::Status written = trace_file_->Finish();
  const std::string of = absl::StrCat("trace of steps ", steps.first, " to ", steps.last, ": ");
  reporter_->Say(written.ok()
                     ? absl::StrCat(of, options_.trace_file, "; open it in ui.perfetto.dev")
                     : absl::StrCat(of, "not written: ", written.message()));
  trace_file_.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::string> OpReports::Text(int64_t steps) {
  if (!HasTables() || profile_ == nullptr) return "";
  const int64_t counted = steps - counted_from_;
  std::string text;
  if (options_.profile && reporter_ != nullptr) {
    text = profile_->Text(counted, absl::ToDoubleSeconds(counted_time_));
  }
  if (options_.comm_log) {
    comm_log_.Add(profile_->TakeSpans());
    CONVENE_ASSIGN_OR_RETURN(const std::vector<CommSheet> sheets,
                             GatherComm(comm_log_.Sheet(), host_));
    absl::StrAppend(&text, CommTable(sheets, counted));
    if (counted > 0 && host_.size() > 1) {
      absl::StrAppend(&text,
                      "each line has the figures of the rank with the median time; in a group the "
                      "rank with the shortest time came last\n");
    }
  }
  return text;
}

}  // namespace convene::worker
