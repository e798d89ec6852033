// Tells a node's story to its machine: a fixture of tests.
#pragma once

#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/core/machine.h"
#include "tools/base/signal_names.h"

namespace convene::agent::story {

using rendezvous::Assignment;
using rendezvous::Close;
using rendezvous::DaemonEvent;
using rendezvous::Outcome;
using rendezvous::Stop;
using rendezvous::StopKind;
using rendezvous::Welcome;

inline std::string Text(const rendezvous::AgentEvent& event) {
  return std::visit(
      [](const auto& e) -> std::string {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, rendezvous::Ready>) {
          return absl::StrCat("ready ", e.store_host, ":", e.store_port);
        } else if constexpr (std::is_same_v<T, rendezvous::Heartbeat>) {
          return "heartbeat";
        } else if constexpr (std::is_same_v<T, rendezvous::WorkerFailure>) {
          return absl::StrCat("failure rank=", e.global_rank, " ", e.why,
                              e.costs_budget ? "" : " free");
        } else if constexpr (std::is_same_v<T, rendezvous::WorkersSucceeded>) {
          return "succeeded";
        } else {
          return e.is_unfit ? "leave unfit" : e.has_workers ? "leave with-workers" : "leave";
        }
      },
      event);
}

inline std::string Text(const Action& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using T = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<T, OpenStream>) {
          return absl::StrCat(
              "open last_epoch=", a.hello.last_epoch.value(),
              a.endpoint == 0 ? "" : absl::StrCat(" at=", a.endpoint),
              a.hello.holds_place ? absl::StrCat(" holds=", a.hello.running_epoch.value()) : "",
              a.may_host || !a.hello.holds_place ? "" : " never-hosts",
              a.handed_over.empty() ? "" : absl::StrCat(" with=", a.handed_over));
        } else if constexpr (std::is_same_v<T, CloseStream>) {
          return "close";
        } else if constexpr (std::is_same_v<T, Send>) {
          return absl::StrCat("send(", a.epoch.value(), ") ", Text(a.event));
        } else if constexpr (std::is_same_v<T, StartWorkers>) {
          return absl::StrCat("start epoch=", a.epoch.value());
        } else if constexpr (std::is_same_v<T, StopWorkers>) {
          return absl::StrCat("stop ",
                              !a.session_line              ? "silent"
                              : a.kind == StopKind::kAbort ? "abort"
                                                           : "checkpoint",
                              " ", SignalName(a.signal), a.spare_sessions ? " spare-sessions" : "");
        } else if constexpr (std::is_same_v<T, KillWorkers>) {
          return "kill";
        } else if constexpr (std::is_same_v<T, RestWorkers>) {
          return "rest";
        } else if constexpr (std::is_same_v<T, WakeWorkers>) {
          return "wake";
        } else if constexpr (std::is_same_v<T, RestartStore>) {
          return "store";
        } else if constexpr (std::is_same_v<T, RunHealthCheck>) {
          return absl::StrCat("check last_epoch=", a.last_epoch.value());
        } else if constexpr (std::is_same_v<T, Say>) {
          return "say " + a.line;
        } else if constexpr (std::is_same_v<T, CancelHealthCheck>) {
          return "cancel check";
        } else {
          return absl::StrCat("finish ", a.result.exit_code);
        }
      },
      action);
}

// Tells a node's story: each verb is an event and answers with the actions, as "a; b; c".
class Node {
 public:
  Node() : state_(MakeRules()) {}

  std::string Feed(const Event& event) {
    const Actions actions = Step(state_, event, now_, 0.0);
    std::vector<std::string> texts;
    for (const Action& action : actions) {
      texts.push_back(Text(action));
      if (const auto* finish = std::get_if<Finish>(&action)) result_ = finish->result;
      if (const auto* open = std::get_if<OpenStream>(&action)) hello_ = open->hello;
    }
    return absl::StrJoin(texts, "; ");
  }
  std::string Daemon(int epoch, DaemonEvent event) {
    event.epoch = Epoch(epoch);
    return Feed(FromDaemon{std::move(event), hello_at_, hosts_, endpoint_});
  }
  // The Welcome of a daemon without a journal, with a lease that plays no role in the story.
  std::string WelcomeIn(int epoch) {
    hello_at_ = now_;
    return Daemon(epoch,
                  {Epoch(), Welcome{absl::Minutes(5), absl::Seconds(1), false, false, true}});
  }
  // The Welcome of a daemon with a journal, to a Hello of this moment.
  std::string WelcomeBack(int epoch, bool resumed, int64_t term = 0) {
    hello_at_ = now_;
    return Daemon(
        epoch, {Epoch(), Welcome{absl::Seconds(8), absl::Seconds(2), resumed, true, true, term}});
  }
  std::string Hear() { return Daemon(1, {Epoch(), rendezvous::Heard{}}); }
  // Goes on until two workers of epoch 1 run, under a daemon with a journal.
  void RunSafely() {
    Feed(Begin{});
    WelcomeBack(0, false);
    Feed(StoreStarted{7000});
    REQUIRE(Assign(1) == "start epoch=1");
  }
  std::string Assign(int epoch) {
    Assignment assignment;
    assignment.first_global_rank = 4;
    assignment.world_size = 6;
    assignment.why = "all there";
    return Daemon(epoch, {Epoch(), assignment});
  }
  std::string Signal(ReceivedSignal signal) {
    signal.at = now_;
    return Feed(SignalReceived{signal});
  }
  std::string StopIn(int epoch, StopKind kind) {
    return Daemon(epoch, {Epoch(), Stop{kind, "node b was lost"}});
  }
  std::string CloseWith(Outcome outcome) {
    return Daemon(1, {Epoch(), Close{outcome, "because", {}}});
  }
  std::string Exit(int local_rank, int code, int signal = 0) {
    ExitStatus status;
    status.exit_code = code;
    status.signal = signal;
    return Feed(WorkerExited{local_rank, 100 + local_rank, status, {"last words"}, {}});
  }
  std::string After(absl::Duration duration) {
    now_ = now_ + duration;
    const std::string actions = Feed(Timer{});
    CHECK(NextTimer(state_) > now_);  // Else the loop would spin.
    return actions;
  }
  std::string LoseStream(absl::Status status = absl::UnavailableError("connection reset")) {
    return Feed(StreamEnded{std::move(status)});
  }
  // Goes on until two workers of epoch 1 run.
  void Run() {
    Feed(Begin{});
    WelcomeIn(0);
    Feed(StoreStarted{7000});
    REQUIRE(Assign(1) == "start epoch=1");
  }
  // Goes on from stopped workers of one epoch to running ones of `epoch`.
  void RunAgain(int epoch) {
    REQUIRE(Feed(WorkersGone{}) == "store");
    Feed(StoreStarted{7001});
    REQUIRE(Assign(epoch) == absl::StrCat("start epoch=", epoch));
  }

  State state_;
  Result result_;
  rendezvous::Hello hello_;  // the last one
  MonotonicTime now_ = MonotonicTime::FromEpoch(absl::Seconds(1000));
  MonotonicTime hello_at_;
  bool hosts_ = false;  // the daemon runs in this process
  std::string endpoint_;

 private:
  static Rules MakeRules() {
    Rules rules;
    rules.hello.host = "a";
    rules.hello.job_id = "job";
    rules.hello.local_world_size = 2;
    rules.hello.join_timeout = absl::Seconds(60);
    rules.endpoint = "head:29400";
    rules.store_host = "a";
    rules.connect_timeout = absl::Seconds(10);
    rules.stop_graces = {absl::Seconds(30), absl::Seconds(30), absl::Seconds(30)};
    return rules;
  }
};

}  // namespace convene::agent::story
