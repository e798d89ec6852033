// OpProfile by the host's clock, for a CPU's streams.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// The spans that a profile keeps until they are taken. Not thread-safe.
class SpanKeeper {
 public:
  void set_most(size_t most) { most_ = most; }
  bool is_wanted() const { return most_ > 0; }
  void Add(const OpSpan& span);
  OpSpans Take();

 private:
  size_t most_ = 0;
  OpSpans kept_;
};

class HostProfile final : public OpProfile {
 public:
  // For ops of `stream`, or of one whose queue is the same.
  HostProfile(Clock& clock, const Stream& stream) : clock_(clock), stream_(stream) {}
  ~HostProfile() override;

  void Begin(const char* op, const OpDetail& detail) override;
  void End() override;
  void BeginPass(const char* pass, const OpDetail& detail) override;
  void EndPass() override;
  std::vector<OpTime> Times() override;
  void KeepSpans(size_t most) override;
  OpSpans TakeSpans() override;

 private:
  Clock& clock_;
  const Stream stream_;
  // Used in the order of the stream's work: a wait for the queue comes before any other use.
  std::vector<OpTime> times_;
  OpSpan op_;    // that is open; without a name: none
  OpSpan pass_;  // the same
  // Spans are taken while the queue runs.
  Mutex mutex_;
  SpanKeeper spans_ ABSL_GUARDED_BY(mutex_);
};

// The entry of `op`, made when it is absent: an op is known by its literal's text.
OpTime& TimeOf(const char* op, std::vector<OpTime>& times);

}  // namespace convene::worker
