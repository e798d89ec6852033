#include "tools/base/stop_request.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace convene {
namespace {

constexpr pid_t kSlurmstepd = 812;
constexpr pid_t kAgent = 900;

ReceivedSignal From(pid_t sender, int number) { return {number, /*from_kernel=*/false, sender}; }
ReceivedSignal Key(int number, MonotonicTime at = {}) {
  return {number, /*from_kernel=*/true, 0, at};
}

struct Heard {
  int milliseconds;
  ReceivedSignal signal;
};

// "stop echo echo": what each of them means.
std::string Story(const std::vector<Heard>& signals) {
  StopRequest request;
  std::vector<std::string> words;
  for (Heard heard : signals) {
    heard.signal.at =
        MonotonicTime::FromEpoch(absl::Hours(5) + absl::Milliseconds(heard.milliseconds));
    switch (request.Hear(heard.signal).meaning) {
      case StopRequest::Meaning::kStop:
        words.push_back("stop");
        break;
      case StopRequest::Meaning::kEcho:
        words.push_back("echo");
        break;
      case StopRequest::Meaning::kAtOnce:
        words.push_back("at-once");
        break;
    }
    CHECK(request.made());
  }
  return absl::StrJoin(words, " ");
}

TEST_CASE("TERM is one request, whoever repeats it and however late") {
  // A worker under Slurm's linuxproc: the two signals of a time limit, and the agent's in between.
  CHECK(Story({{0, From(kSlurmstepd, SIGTERM)},
               {1, From(kAgent, SIGTERM)},
               {15, From(kSlurmstepd, SIGTERM)}}) == "stop echo echo");
  // A preemption: TERM, and two more as the grace ends.
  CHECK(Story({{0, From(kSlurmstepd, SIGTERM)},
               {15'000, From(kSlurmstepd, SIGTERM)},
               {15'004, From(kSlurmstepd, SIGTERM)}}) == "stop echo echo");
  // `kill` twice, and one from outside of a container, which has no sender.
  CHECK(Story({{0, From(77, SIGTERM)}, {5'000, From(78, SIGTERM)}, {9'000, From(0, SIGTERM)}}) ==
        "stop echo echo");
}

TEST_CASE("INT that a process sends is no key, also when a group gets it twice") {
  CHECK(Story({{0, From(kAgent, SIGINT)}, {2'000, From(kAgent, SIGINT)}}) == "stop echo");
  // A key, and a wrapper that passes the same signal on.
  CHECK(Story({{0, Key(SIGINT)}, {3, From(77, SIGINT)}, {1'500, From(77, SIGINT)}}) ==
        "stop echo echo");
  CHECK(Story({{0, From(77, SIGINT)}, {10'000, From(77, SIGTERM)}}) == "stop echo");
}

TEST_CASE("only a second key, clearly later than the first, means at once") {
  CHECK(Story({{0, Key(SIGINT)}, {30, Key(SIGINT)}, {999, Key(SIGINT)}, {1'000, Key(SIGINT)}}) ==
        "stop echo echo at-once");
  CHECK(Story({{0, Key(SIGINT)}, {1'200, Key(SIGQUIT)}}) == "stop at-once");
}

TEST_CASE("a person's first key after a scheduler's TERM is not the second") {
  CHECK(Story({{0, From(kSlurmstepd, SIGTERM)}, {20'000, Key(SIGINT)}, {20'500, Key(SIGINT)}}) ==
        "stop echo echo");
  CHECK(Story({{0, From(kSlurmstepd, SIGTERM)}, {20'000, Key(SIGINT)}, {21'000, Key(SIGINT)}}) ==
        "stop echo at-once");
}

TEST_CASE("a terminal that is closed after Ctrl-C does not hurry the stop") {
  CHECK(Story({{0, Key(SIGINT)}, {3'000, Key(SIGHUP)}}) == "stop echo");
}

TEST_CASE("each decision says what was heard and from where") {
  const MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(5));
  StopRequest scheduler;
  CHECK(scheduler.Hear(From(kSlurmstepd, SIGTERM)).why == "SIGTERM received from pid 812");
  CHECK(scheduler.Hear(From(0, SIGTERM)).why ==
        "SIGTERM received, but the stop was requested before");
  const StopRequest::Decision too_late = scheduler.Hear(Key(SIGINT, now));
  CHECK(too_late.is_first_key);
  CHECK(too_late.why ==
        "SIGINT received from the terminal, but the stop was requested before; Ctrl-C once more, "
        "after a second or later, stops at once");
  CHECK_FALSE(scheduler.Hear(Key(SIGINT, now)).is_first_key);
  StopRequest person;
  CHECK(person.Hear(Key(SIGINT, now)).why ==
        "SIGINT received from the terminal; Ctrl-C once more, after a second or later, stops at "
        "once");
  CHECK(person.Hear(Key(SIGINT, now + absl::Seconds(1))).why ==
        "SIGINT received from the terminal a second time: at once");
}

TEST_CASE("what signalfd tells: only the kernel's own signals come from the terminal") {
  signalfd_siginfo info = {};
  info.ssi_signo = SIGINT;
  info.ssi_code = SI_KERNEL;
  CHECK(SignalOf(info).from_kernel);
  info.ssi_code = SI_USER;
  info.ssi_pid = kAgent;
  CHECK_FALSE(SignalOf(info).from_kernel);
  CHECK(SignalOf(info).sender == kAgent);
  CHECK(SignalOf(info).number == SIGINT);
}

}  // namespace
}  // namespace convene
