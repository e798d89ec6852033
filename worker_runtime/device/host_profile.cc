#include "worker_runtime/device/host_profile.h"

#include <cstring>
#include <utility>

#include "absl/time/time.h"
#include "tools/base/check.h"
#include "worker_runtime/device/host_queue.h"

namespace convene::worker {

void SpanKeeper::Add(const OpSpan& span) {
  if (kept_.spans.size() < most_) {
    kept_.spans.push_back(span);
  } else if (is_wanted()) {
    ++kept_.left_out;
  }
}

OpSpans SpanKeeper::Take() { return std::exchange(kept_, {}); }

HostProfile::~HostProfile() { AwaitAll(stream_); }

std::vector<OpTime> HostProfile::Times() {
  AwaitAll(stream_);
  return times_;
}

void HostProfile::KeepSpans(size_t most) {
  MutexLock lock(&mutex_);
  spans_.set_most(most);
}

OpSpans HostProfile::TakeSpans() {
  MutexLock lock(&mutex_);
  return spans_.Take();
}

void HostProfile::Begin(const char* op, const OpDetail& detail) {
  CONVENE_CHECK(op_.op == nullptr);
  op_ = {.op = op, .detail = detail, .begin = clock_.Now()};
}

void HostProfile::End() {
  CONVENE_CHECK(op_.op != nullptr);
  op_.end = clock_.Now();
  OpTime& time = TimeOf(op_.op, times_);
  time.seconds += absl::ToDoubleSeconds(op_.end - op_.begin);
  ++time.calls;
  MutexLock lock(&mutex_);
  spans_.Add(std::exchange(op_, {}));
}

void HostProfile::BeginPass(const char* pass, const OpDetail& detail) {
  CONVENE_CHECK(pass_.op == nullptr && op_.op == nullptr);
  pass_ = {.op = pass, .detail = detail, .begin = clock_.Now()};
}

void HostProfile::EndPass() {
  pass_.end = clock_.Now();
  MutexLock lock(&mutex_);
  spans_.Add(std::exchange(pass_, {}));
}

OpTime& TimeOf(const char* op, std::vector<OpTime>& times) {
  for (OpTime& time : times) {
    if (time.op == op || std::strcmp(time.op, op) == 0) return time;
  }
  times.push_back({.op = op});
  return times.back();
}

}  // namespace convene::worker
