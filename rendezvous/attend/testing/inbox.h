// The words of a daemon to the agents of a test.
#pragma once

#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// The events of several agents' streams, in the order of arrival.
class Inbox {
 public:
  struct Word {
    int agent;
    StreamSink::Item item;
  };

  std::shared_ptr<StreamSink> SinkOf(int agent) { return std::make_shared<Sink>(this, agent); }

  void Put(int agent, StreamSink::Item item) {
    MutexLock lock(&mutex_);
    words_.push_back({agent, std::move(item)});
    changed_.Signal();
  }

  // The next event; none when none came in time.
  std::optional<Word> Take(absl::Duration patience = absl::Seconds(20)) {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Clock::Real().Now() + patience;
    while (words_.empty()) {
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      changed_.WaitFor(&mutex_, left);
    }
    Word word = std::move(words_.front());
    words_.pop_front();
    return word;
  }

  bool empty() {
    MutexLock lock(&mutex_);
    return words_.empty();
  }

  // The next event, which must be a Body for `agent`.
  template <typename Body>
  Body Expect(int agent) {
    const std::optional<Word> word = Take();
    REQUIRE(word.has_value());
    CHECK(word->agent == agent);
    REQUIRE(std::holds_alternative<DaemonEvent>(word->item));
    const DaemonEvent& event = std::get<DaemonEvent>(word->item);
    REQUIRE(std::holds_alternative<Body>(event.body));
    return std::get<Body>(event.body);
  }

 private:
  class Sink final : public StreamSink {
   public:
    Sink(Inbox* inbox, int agent) : inbox_(inbox), agent_(agent) {}
    void Queue(Item item) override { inbox_->Put(agent_, std::move(item)); }
    void Flush() override {}

   private:
    Inbox* const inbox_;
    const int agent_;
  };

  Mutex mutex_;
  CondVar changed_;
  std::deque<Word> words_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::rendezvous
