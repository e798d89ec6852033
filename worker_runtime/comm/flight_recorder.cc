#include "worker_runtime/comm/flight_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

// A rank waits in a few operations at once, one of each queue.
constexpr size_t kWaitingMax = 64;

}  // namespace

FlightRecorder::FlightRecorder(size_t capacity, Clock& clock)
    : clock_(clock), born_(clock.Now()), entries_(capacity) {
  CONVENE_CHECK(capacity > 0);
  waiting_.reserve(kWaitingMax);
}

uint64_t FlightRecorder::Start(absl::string_view group, absl::string_view operation,
                               uint64_t sequence, ConstElements data) {
  const MonotonicTime now = clock_.Now();
  MutexLock lock(&mutex_);
  const uint64_t handle = ++last_handle_;
  Entry& entry = entries_[handle % entries_.size()];
  entry.handle = handle;
  entry.group.assign(group.data(), group.size());
  entry.operation.assign(operation.data(), operation.size());
  entry.sequence = sequence;
  entry.size_bytes = data.size_bytes();
  entry.dtype = data.dtype;
  entry.end.reset();
  entry.awaited.reset();
  entry.started = now;
  return handle;
}

void FlightRecorder::Finish(uint64_t handle, const absl::Status& status) {
  const MonotonicTime now = clock_.Now();
  MutexLock lock(&mutex_);
  if (const auto found = Find(handle); found != waiting_.end()) {
    waiting_.erase(found);
    Tell();
  }
  Entry& entry = entries_[handle % entries_.size()];
  if (entry.handle != handle) return;
  entry.end = {now, status.code()};
}

std::vector<FlightRecorder::Waiting>::iterator FlightRecorder::Find(uint64_t handle) {
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [handle](const Waiting& waiting) { return waiting.handle == handle; });
}

void FlightRecorder::Awaits(uint64_t handle, int global_rank, bool is_beside_training) {
  MutexLock lock(&mutex_);
  Entry& entry = entries_[handle % entries_.size()];
  if (entry.handle != handle) return;
  entry.awaited = global_rank;
  if (Find(handle) == waiting_.end()) {
    if (waiting_.size() == kWaitingMax) return;
    // A save waits for disks, which hides nothing of the training's.
    const auto place = is_beside_training
                           ? waiting_.end()
                           : std::find_if(waiting_.begin(), waiting_.end(),
                                          [](const Waiting& w) { return w.is_beside_training; });
    waiting_.insert(place, {handle, is_beside_training});
  }
  if (FirstKept()->handle == handle) Tell();
}

void FlightRecorder::Observe(Observer observer) {
  MutexLock lock(&mutex_);
  observer_ = std::move(observer);
  if (!waiting_.empty()) Tell();
}

std::vector<FlightRecorder::Waiting>::iterator FlightRecorder::FirstKept() {
  auto first = waiting_.begin();
  while (first != waiting_.end() &&
         entries_[first->handle % entries_.size()].handle != first->handle) {
    ++first;
  }
  return first;
}

void FlightRecorder::Tell() {
  if (observer_ == nullptr) return;
  const auto first = FirstKept();
  if (first == waiting_.end()) return observer_(nullptr);
  const Entry& entry = entries_[first->handle % entries_.size()];
  const AwaitedOperation awaited = {.group = entry.group,
                                    .operation = entry.operation,
                                    .sequence = entry.sequence,
                                    .global_rank = *entry.awaited};
  observer_(&awaited);
}

std::string FlightRecorder::Line(const Entry& entry, MonotonicTime now) const {
  std::string line =
      absl::StrFormat("%.3f ms  %s #%d %s %d B", absl::ToDoubleMilliseconds(entry.started - born_),
                      entry.group, entry.sequence, entry.operation, entry.size_bytes);
  // An empty entry has no type.
  if (entry.size_bytes > 0) absl::StrAppend(&line, " ", DTypeName(entry.dtype));
  if (!entry.end.has_value()) {
    absl::StrAppendFormat(
        &line, "  started, unfinished for %.3f ms%s\n",
        absl::ToDoubleMilliseconds(now - entry.started),
        entry.awaited.has_value() ? absl::StrCat(", waits for rank ", *entry.awaited) : "");
    return line;
  }
  const bool ok = entry.end->code == absl::StatusCode::kOk;
  absl::StrAppendFormat(&line, "  %s after %.3f ms%s\n", ok ? "finished" : "failed",
                        absl::ToDoubleMilliseconds(entry.end->at - entry.started),
                        ok ? "" : ": " + absl::StatusCodeToString(entry.end->code));
  return line;
}

std::string FlightRecorder::Dump(size_t most) const {
  const MonotonicTime now = clock_.Now();
  MutexLock lock(&mutex_);
  std::string text;
  const uint64_t kept = std::min<uint64_t>({last_handle_, entries_.size(), most});
  for (uint64_t handle = last_handle_ - kept + 1; handle <= last_handle_; ++handle) {
    text += Line(entries_[handle % entries_.size()], now);
  }
  return text;
}

void FlightRecorder::Log() const {
  spdlog::warn("the last collectives of this rank, to compare with the other ranks' lines:\n{}",
               Dump(16));
}

FlightRecorder& FlightRecorder::OfProcess() {
  // Never destroyed: threads may still record while the process ends.
  static FlightRecorder& recorder = *new FlightRecorder(4096, Clock::Real());
  return recorder;
}

}  // namespace convene::worker
