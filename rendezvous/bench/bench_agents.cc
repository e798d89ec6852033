#include "rendezvous/bench/bench_agents.h"

#include <cstdio>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr int kDialers = 4;

}  // namespace

Hello BenchHello(size_t i, size_t agents, int ranks) {
  Hello hello;
  hello.job_id = "bench";
  hello.host = absl::StrCat("node", i);
  hello.nodes_min = hello.nodes_max = static_cast<int>(agents);
  hello.lease = absl::Minutes(5);
  hello.local_world_size = ranks;
  return hello;
}

Heartbeat BenchHeartbeat(int64_t step, int ranks) {
  Heartbeat beat = {WorkerProgress{step, 3.5, "step"}, {}};
  for (int rank = 0; ranks > 1 && rank < ranks; ++rank) {
    beat.ranks.push_back({.local_rank = rank,
                          .step = step,
                          .steps_per_second = 3.5,
                          .phase = "step",
                          .compute_ms = 250,
                          .wait_ms = 30,
                          .data_ms = 2,
                          .loss = 2.5,
                          .tokens_per_second = 9000,
                          .memory_bytes = 60 << 20,
                          .memory_peak_bytes = 70 << 20,
                          .steps = 3});
  }
  return beat;
}

BenchAgents::BenchAgents(Endpoint endpoint, int count, int ranks)
    : endpoint_(std::move(endpoint)), ranks_(ranks), sent_at_(count), agents_(count) {}

bool BenchAgents::Join() {
  std::vector<Thread> dialers;
  for (int i = 0; i < kDialers; ++i) {
    dialers.emplace_back(absl::StrCat("dialer", i), [this, i] { DialEvery(i); });
  }
  for (Thread& dialer : dialers) dialer.Join();
  return WaitForAll(&assigned_, "joined");
}

bool BenchAgents::WaitForAll(const size_t* count, const char* what) {
  const MonotonicTime deadline = Clock::Real().Now() + kPatience;
  MutexLock lock(&mutex_);
  while (*count < agents_.size() && Clock::Real().Now() < deadline) {
    changed_.WaitFor(&mutex_, absl::Seconds(1));
  }
  if (*count >= agents_.size()) return true;
  std::fprintf(stderr, "of %zu agents only %zu %s\n", agents_.size(), *count, what);
  return false;
}

void BenchAgents::OnEvent(size_t agent, const DaemonEvent& event) {
  MutexLock lock(&mutex_);
  if (std::holds_alternative<Heard>(event.body) && !sent_at_[agent].empty()) {
    answer_times_.push_back(Clock::Real().Now() - sent_at_[agent].front());
    sent_at_[agent].pop_front();
  }
  if (!std::holds_alternative<Assignment>(event.body)) return;
  epoch_ = event.epoch;
  if (++assigned_ == agents_.size()) changed_.Signal();
}

void BenchAgents::OnEnd(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (++ended_ == agents_.size()) changed_.Signal();
  if (is_finishing_) return;
  if (++lost_ == 1) std::fprintf(stderr, "a stream ended: %s\n", status.ToString().c_str());
}

int BenchAgents::lost() const {
  MutexLock lock(&mutex_);
  return lost_;
}

std::vector<absl::Duration> BenchAgents::TakeAnswerTimes() {
  MutexLock lock(&mutex_);
  return std::exchange(answer_times_, {});
}

bool BenchAgents::Finish() {
  Epoch epoch;
  {
    MutexLock lock(&mutex_);
    is_finishing_ = true;
    epoch = epoch_;
  }
  for (const auto& agent : agents_) agent->Send(epoch, WorkersSucceeded());
  return WaitForAll(&ended_, "were told the end");
}

void BenchAgents::DialEvery(int first) {
  for (size_t i = first; i < agents_.size(); i += kDialers) {
    AgentStream::Handlers handlers;
    handlers.on_event = [this, i](const DaemonEvent& event) { OnEvent(i, event); };
    handlers.on_end = [this](const absl::Status& status) { OnEnd(status); };
    const Hello hello = BenchHello(i, agents_.size(), ranks_);
    auto stream = AgentStream::Open(endpoint_, Incarnation(i + 1), hello, handlers, kPatience);
    if (!stream.ok()) {
      std::fprintf(stderr, "%s\n", stream.status().ToString().c_str());
      return;
    }
    agents_[i] = *std::move(stream);
    agents_[i]->Send(Epoch(), Ready{hello.host, 1});
  }
}

int BenchAgents::SendHeartbeats(int a_second, absl::Duration duration) {
  constexpr int kSliceMs = 5;
  constexpr absl::Duration kSlice = absl::Milliseconds(kSliceMs);
  const int per_slice = a_second * kSliceMs / 1000;
  const MonotonicTime begin = Clock::Real().Now();
  Epoch epoch;
  {
    MutexLock lock(&mutex_);
    epoch = epoch_;
  }
  int sent = 0;
  for (int slice = 1; slice * kSlice <= duration; ++slice) {
    for (int i = 0; i < per_slice; ++i, ++sent) {
      const size_t agent = sent % agents_.size();
      {
        MutexLock lock(&mutex_);
        sent_at_[agent].push_back(Clock::Real().Now());
      }
      // Each round of all agents is a step further.
      const auto step = static_cast<int64_t>(100 + sent / agents_.size());
      agents_[agent]->Send(epoch, BenchHeartbeat(step, ranks_));
    }
    const absl::Duration left = begin + slice * kSlice - Clock::Real().Now();
    if (left > absl::ZeroDuration()) Clock::Real().SleepFor(left);
  }
  return sent;
}

}  // namespace convene::rendezvous
