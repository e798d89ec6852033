// Where the time of a step goes: every op of a stream, by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/base/clock.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// The name of a collective's ops begins with this; the group's name follows.
inline constexpr char kCommunicationPrefix[] = "communication/";

// All calls of one op since the profile began.
struct OpTime {
  const char* op = nullptr;
  int64_t calls = 0;
  double seconds = 0;
};

// The facts about an op beside its name.
struct OpDetail {
  // Of a collective or a message: "all_reduce", "send". Null: the op is arithmetic, or a pass. A
  // literal.
  const char* operation = nullptr;
  // A collective's size as nccl-tests counts it: the larger one of what a rank gives and gets.
  int64_t bytes = 0;
  int ranks = 0;  // of its group
  // Of a pass of the pipeline.
  int chunk = -1;
  int microbatch = -1;
};

// One call of an op, or a pass of the pipeline with the ops within it, by the host's clock
// (Clock::Real()). On a GPU it is when the GPU worked, some microseconds inexact.
struct OpSpan {
  const char* op = nullptr;
  OpDetail detail;
  MonotonicTime begin;
  MonotonicTime end;
};

// Consecutive calls, by their ends.
struct OpSpans {
  std::vector<OpSpan> spans;
  int64_t left_out = 0;  // later calls, for which there was no room
};

// Watches the ops of one stream, one after the other. Made by a device (Device::MakeProfile), given
// to the stream by Stream::set_profile. One thread at a time, in the order of the stream's work:
// a queue on the CPU calls Begin and End on its own thread, with the profile that the stream had
// when the op was queued.
class OpProfile {
 public:
  virtual ~OpProfile() = default;
  // `op` lives as long as the profile. REQUIRES: the previous op has ended.
  virtual void Begin(const char* op, const OpDetail& detail) = 0;
  virtual void End() = 0;
  // A pass of the pipeline: the ops until EndPass are its own. It is kept as a span alone.
  // REQUIRES: no op and no pass is open; the stream is the calling thread, or a GPU's.
  virtual void BeginPass(const char* /*pass*/, const OpDetail& /*detail*/) {}
  virtual void EndPass() {}
  // A GPU's stream waits for what was queued in another one (Device::Order). It is no op: of those
  // the waits are the gaps. REQUIRES: no op is open.
  virtual void BeginWait() {}
  virtual void EndWait() {}
  // All ops until now, in the order of first calls. It waits for queued work, as the destructor
  // does.
  virtual std::vector<OpTime> Times() = 0;
  // From now on each call is kept as a span, too, until it is taken: at most `most` of them. At
  // first none is. REQUIRES: the stream is idle, since a GPU's clock is compared with the host's.
  virtual void KeepSpans(size_t most) = 0;
  // Takes the calls that are known to be over. It waits for none. For the thread that queues work.
  virtual OpSpans TakeSpans() = 0;
};

// One op, as long as it lives. It costs a comparison where the stream has no profile.
class OpScope {
 public:
  OpScope(const Stream& stream, const char* op, const OpDetail& detail = {})
      : OpScope(stream.profile(), op, detail) {}
  OpScope(OpProfile* profile, const char* op, const OpDetail& detail = {}) : profile_(profile) {
    if (profile_ != nullptr) profile_->Begin(op, detail);
  }
  ~OpScope() {
    if (profile_ != nullptr) profile_->End();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  OpProfile* const profile_;
};

// One pass of the pipeline, as long as it lives.
class PassScope {
 public:
  PassScope(const Stream& stream, const char* pass, const OpDetail& detail)
      : profile_(stream.profile()) {
    if (profile_ != nullptr) profile_->BeginPass(pass, detail);
  }
  ~PassScope() {
    if (profile_ != nullptr) profile_->EndPass();
  }
  PassScope(const PassScope&) = delete;
  PassScope& operator=(const PassScope&) = delete;

 private:
  OpProfile* const profile_;
};

}  // namespace convene::worker
