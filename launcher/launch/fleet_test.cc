#include "launcher/launch/fleet.h"

#include <csignal>

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"

namespace convene::launcher {
namespace {

// Of a running host, with the default link timeout.
constexpr absl::Duration kSilence = absl::Seconds(75);

// A fleet whose actions are lines: "dial 0", "tell 1 T", "close 0", "say ...".
class Story {
 public:
  explicit Story(int hosts, int nodes_min = 0, size_t most_dialing = 64)
      : fleet_([&] {
          FleetOptions options;
          for (int i = 0; i < hosts; ++i) options.hosts.push_back(absl::StrCat("n", i));
          options.nodes_min = nodes_min == 0 ? hosts : nodes_min;
          options.most_dialing = most_dialing;
          options.program = "/opt/convene";
          return options;
        }()) {
    Take(fleet_.Begin(now_));
  }

  Story& Started(size_t host) { return Take(fleet_.Started(host, now_)); }
  Story& AgentEnded(size_t host, int code) { return Take(fleet_.AgentEnded(host, code, now_)); }
  Story& LinkEnded(size_t host, int code, const std::string& line = "") {
    LinkEnd end = {code, {}};
    if (!line.empty()) end.last_lines.push_back(line);
    return Take(fleet_.LinkEnded(host, end, now_));
  }
  Story& AllStarted(size_t hosts) {
    for (size_t i = 0; i < hosts; ++i) Started(i);
    lines_.clear();
    return *this;
  }
  Story& HeardFrom(size_t host) {
    fleet_.HeardFrom(host, now_);
    return *this;
  }
  Story& SetDeaf(bool is_deaf) {
    fleet_.SetDeaf(is_deaf, now_);
    return *this;
  }
  Story& Heard(int signal, bool key = false) {
    return Take(fleet_.Heard({signal, key, key ? 0 : 7, now_}, now_));
  }
  Story& After(absl::Duration time) {
    now_ = now_ + time;
    return Take(fleet_.OnTime(now_));
  }

  // Whether one of the actions since the last call of this kind contains `text`.
  bool Did(const std::string& text) const {
    for (const std::string& line : lines_) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
  size_t Count(const std::string& beginning) const {
    size_t count = 0;
    for (const std::string& line : lines_) count += line.rfind(beginning, 0) == 0 ? 1 : 0;
    return count;
  }
  void Forget() { lines_.clear(); }
  std::optional<int> result() const { return fleet_.result(); }
  absl::Duration wait() const { return fleet_.next_deadline() - now_; }

 private:
  Story& Take(const std::vector<FleetAction>& actions) {
    for (const FleetAction& action : actions) {
      if (const auto* dial = std::get_if<DialHost>(&action)) {
        lines_.push_back(absl::StrCat("dial ", dial->host));
      } else if (const auto* tell = std::get_if<TellHost>(&action)) {
        lines_.push_back(absl::StrCat("tell ", tell->host, " ",
                                      std::string(1, static_cast<char>(tell->request))));
      } else if (const auto* close = std::get_if<CloseLink>(&action)) {
        lines_.push_back(absl::StrCat("close ", close->host));
      } else {
        lines_.push_back("say " + std::get<SayLine>(action).line);
      }
    }
    return *this;
  }

  MonotonicTime now_ = MonotonicTime::FromEpoch(absl::Hours(1));
  std::vector<std::string> lines_;
  Fleet fleet_;
};

TEST_CASE("all hosts are dialled, and the job's success is the launch's") {
  Story story(2);
  CHECK((story.Did("dial 0") && story.Did("dial 1")));
  story.AllStarted(2);
  story.AgentEnded(0, 0).LinkEnded(0, 0);
  CHECK_FALSE(story.result().has_value());
  story.AgentEnded(1, 0).LinkEnded(1, 0);
  CHECK(story.result() == 0);
  CHECK(story.Count("say") == 0);
}

TEST_CASE("no more are dialled at one time than allowed, and waiting for a slot is no busy wait") {
  Story story(5, 5, 2);
  CHECK(story.Count("dial") == 2);
  CHECK(story.wait() == kStartPatience);
  story.Started(1);
  CHECK(story.Count("dial") == 3);
  story.Started(0).Started(2).Started(3).Started(4);
  CHECK(story.Count("dial") == 5);
}

TEST_CASE("a failed job ends with the first code, when its agents end by themselves") {
  Story story(2);
  story.AllStarted(2).AgentEnded(1, 1).LinkEnded(1, 1).AgentEnded(0, 1).LinkEnded(0, 1);
  CHECK(story.result() == 1);
  CHECK(story.Count("tell") == 0);
}

TEST_CASE("an agent that failed alone takes the others along after a while, where MIN is missed") {
  Story story(3);
  story.AllStarted(3).AgentEnded(1, 71).LinkEnded(1, 71);
  CHECK(story.wait() == absl::Seconds(10));
  CHECK(story.Count("tell") == 0);
  story.After(absl::Seconds(10));
  CHECK((story.Did("tell 0 T") && story.Did("tell 2 T") && !story.Did("tell 1")));
  CHECK(story.Did("no other host will come"));
  story.AgentEnded(0, 143).LinkEnded(0, 143).AgentEnded(2, 143).LinkEnded(2, 143);
  CHECK(story.result() == 71);
}

TEST_CASE("an elastic job goes on without an agent that failed") {
  Story story(3, 2);
  story.AllStarted(3).AgentEnded(1, 71).LinkEnded(1, 71);
  CHECK(story.wait() == kSilence);
  story.AgentEnded(0, 0).LinkEnded(0, 0).AgentEnded(2, 0).LinkEnded(2, 0);
  CHECK(story.result() == 0);
}

TEST_CASE("a host that the job needs and that cannot be started stops all, with its reason") {
  Story story(3);
  story.Started(0);
  story.Forget();
  story.LinkEnded(1, 255, "u@n1: Permission denied (publickey).");
  CHECK(story.Did("ssh did not reach n1"));
  CHECK((story.Did("tell 0 T") && story.Did("close 2")));
  story.LinkEnded(2, 137).AgentEnded(0, 143).LinkEnded(0, 143);
  CHECK(story.result() == 64);
  CHECK(story.Count("say") == 1);
}

TEST_CASE("an elastic job starts without it, unless it is the one that serves the rendezvous") {
  Story story(3, 2);
  story.LinkEnded(1, 255, "Connection timed out");
  CHECK(story.Did("The job starts without this host: --nnodes allows 2"));
  story.AllStarted(1).Started(2);
  CHECK_FALSE(story.result().has_value());

  Story first(3, 2);
  first.LinkEnded(0, 255, "Connection timed out");
  CHECK((first.Did("close 1") && first.Did("close 2")));
  first.LinkEnded(1, 137).LinkEnded(2, 137);
  CHECK(first.result() == 69);
}

TEST_CASE("a lost host is dialled again, later and later, until it is back") {
  Story story(2);
  story.AllStarted(2).LinkEnded(1, 255, "Timeout, server n1 not responding.");
  CHECK(
      story.Did("the connection to n1 is lost (ssh ended with code 255; the last line from "
                "there: Timeout, server n1 not responding.)"));
  CHECK_FALSE(story.result().has_value());
  absl::Duration before = absl::ZeroDuration();
  for (int i = 0; i < 4; ++i) {
    const absl::Duration wait = story.wait();
    CHECK(wait > before);
    before = wait;
    story.Forget();
    story.After(wait);
    CHECK(story.Did("dial 1"));
    if (i < 3) story.LinkEnded(1, 255, "No route to host");
    CHECK(story.Count("say") == 0);
  }
  story.Started(1);
  CHECK(story.Did("n1 is back"));
  story.AgentEnded(1, 0).LinkEnded(1, 0).AgentEnded(0, 0).LinkEnded(0, 0);
  CHECK(story.result() == 0);
}

TEST_CASE("when the job is over, a lost host is not dialled any more") {
  Story waiting(2);
  waiting.AllStarted(2).LinkEnded(1, 255).AgentEnded(0, 0).LinkEnded(0, 0);
  CHECK(waiting.result() == 0);

  Story dialing(2);
  dialing.AllStarted(2).LinkEnded(1, 255).After(absl::Seconds(2)).AgentEnded(0, 0);
  CHECK(dialing.Did("close 1"));
  dialing.LinkEnded(1, 137).LinkEnded(0, 0);
  CHECK(dialing.result() == 0);
}

TEST_CASE("when every host is lost, nobody knows the end") {
  Story story(2);
  story.AllStarted(2).LinkEnded(1, 255).LinkEnded(0, 255);
  CHECK(story.Did("no agent is left"));
  CHECK(story.result() == 69);
}

TEST_CASE("a signal is one request to all agents, and hosts that are being dialled are let go") {
  Story story(3);
  story.Started(0).Started(1);
  story.Forget();
  story.Heard(SIGTERM).Heard(SIGTERM);
  CHECK(story.Count("tell") == 2);
  CHECK((story.Did("tell 0 T") && story.Did("tell 1 T") && story.Did("close 2")));
  story.LinkEnded(2, 137).AgentEnded(0, 143).LinkEnded(0, 143);
  CHECK_FALSE(story.result().has_value());
  story.LinkEnded(1, 255);
  CHECK(story.Did("the connection to n1 was lost before its agent had ended"));
  CHECK(story.result() == 128 + SIGTERM);
}

TEST_CASE("a second Ctrl-C clearly later kills, and does not wait for a dead link") {
  Story story(2);
  story.AllStarted(2).Heard(SIGINT, true).After(absl::Milliseconds(300)).Heard(SIGINT, true);
  CHECK((story.Count("tell") == 2 && story.Did("tell 1 I")));
  story.Forget();
  story.After(absl::Seconds(2)).Heard(SIGINT, true);
  CHECK((story.Did("tell 0 K") && story.Did("tell 1 K")));
  story.AgentEnded(0, 137).LinkEnded(0, 137);
  CHECK(story.wait() == absl::Seconds(5));
  story.After(absl::Seconds(5));
  CHECK(story.Did("close 1"));
  story.LinkEnded(1, 137);
  CHECK(story.result() == 128 + SIGINT);
}

TEST_CASE("a link that stays open after its agent's end is closed") {
  Story story(1);
  story.AllStarted(1).AgentEnded(0, 255);
  CHECK(story.wait() == absl::Seconds(5));
  story.After(absl::Seconds(5));
  CHECK(story.Did("close 0"));
  story.LinkEnded(0, 137);
  CHECK(story.result() == 255);
}

TEST_CASE("a host that falls silent is lost, and dialled again") {
  Story story(2);
  story.AllStarted(2).After(absl::Seconds(40)).HeardFrom(0).After(absl::Seconds(34));
  CHECK(story.Count("close") == 0);
  story.After(absl::Seconds(1));
  CHECK((story.Did("close 1") && !story.Did("close 0")));
  CHECK(story.wait() == kSilence - absl::Seconds(35));
  story.LinkEnded(1, 137);
  CHECK(story.Did("the connection to n1 is lost (nothing came from there for 1m15s)"));
  CHECK(story.Did("n1 is dialled again"));
  story.After(absl::Seconds(2));
  CHECK(story.Did("dial 1"));
  story.Started(1).AgentEnded(1, 0).LinkEnded(1, 0).AgentEnded(0, 0).LinkEnded(0, 0);
  CHECK(story.result() == 0);
}

TEST_CASE("when every host is silent, the launch ends") {
  Story story(2);
  story.AllStarted(2).After(kSilence);
  CHECK(story.Count("close") == 2);
  story.LinkEnded(0, 137).LinkEnded(1, 137);
  CHECK(story.Did("the connection to n0 is lost (nothing came from there for 1m15s)"));
  CHECK(story.Did("no agent is left that could tell how the job ends"));
  CHECK(story.result() == 69);
}

TEST_CASE("silent hosts end a stop that was asked for, too") {
  Story story(1);
  story.AllStarted(1).After(absl::Seconds(10)).Heard(SIGTERM).After(kSilence - absl::Seconds(10));
  CHECK(story.Did("close 0"));
  story.LinkEnded(0, 137);
  CHECK(story.Did("the connection to n0 was lost before its agent had ended"));
  CHECK(story.result() == 128 + SIGTERM);
}

TEST_CASE("a host whose first dial hangs is given up, with its name and what to do") {
  Story story(2);
  story.Started(0).After(kStartPatience - absl::Seconds(1)).HeardFrom(0);
  CHECK(story.Count("close") == 0);
  story.After(absl::Seconds(1));
  CHECK((story.Did("close 1") && !story.Did("close 0")));
  story.LinkEnded(1, 137);
  CHECK(story.Did("no agent started on n1: ssh still runs, but for 1m nothing came"));
  CHECK(story.Did("`ssh -o BatchMode=yes n1 true`"));
  CHECK(story.Did("tell 0 T"));
  story.AgentEnded(0, 143).LinkEnded(0, 143);
  CHECK(story.result() == 69);
}

TEST_CASE("a host that waits for its name is dialled for as long as it is heard") {
  Story story(1);
  for (int i = 0; i < 10; ++i) story.After(absl::Seconds(50)).HeardFrom(0);
  CHECK(story.Count("close") == 0);
  // A link that is let go because the job is over needs no explanation, silent or not.
  story.After(kStartPatience).Heard(SIGTERM).LinkEnded(0, 137);
  CHECK_FALSE(story.Did("no agent started"));
  CHECK(story.result() == 128 + SIGTERM);
}

TEST_CASE("nobody is silent while this command cannot listen") {
  Story story(1);
  story.AllStarted(1).SetDeaf(true).After(absl::Hours(1));
  CHECK(story.wait() == absl::InfiniteDuration());
  story.SetDeaf(false).After(kSilence - absl::Seconds(1));
  CHECK(story.Count("close") == 0);
  story.SetDeaf(false).After(absl::Seconds(1));
  CHECK(story.Did("close 0"));
}

}  // namespace
}  // namespace convene::launcher
