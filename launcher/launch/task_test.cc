#include "launcher/launch/task.h"

#include <algorithm>
#include <csignal>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

const HostTask kTask = {absl::Milliseconds(1500),
                        "run.1",
                        "/a b/c'd",
                        {{"NCCL_DEBUG", ""}, {"MOTTO", "a=b\n$HOME \"é\" 'x'"}},
                        {"--nnodes", "2", "--", "train.py", "", "a\nb", "*"}};

TEST_CASE("a task arrives as it was sent, in pieces of any size, and the rest are requests") {
  const std::string bytes = EncodeTask(kTask) + ".I";
  for (const size_t piece : {1u, 7u, 4096u}) {
    TaskReader reader;
    size_t at = 0;
    while (!reader.task().has_value()) {
      REQUIRE(at < bytes.size());
      const auto taken = reader.Add(absl::string_view(bytes).substr(at, piece));
      REQUIRE_OK(taken);
      at += *taken;
    }
    CHECK(*reader.task() == kTask);
    CHECK(bytes.substr(at) == ".I");
  }
}

TEST_CASE("a task without variables and without arguments") {
  const HostTask task = {absl::Seconds(60), "r", "/", {}, {}};
  TaskReader reader;
  REQUIRE_OK(reader.Add(EncodeTask(task)));
  CHECK(reader.task() == task);
}

TEST_CASE("bytes of another version, and of nobody") {
  for (const std::string bytes :
       {"convene-launch-1 10\n", "hello", "convene-launch-2 x\n", "convene-launch-2 99999999999\n",
        "convene-launch-2 1\nx", "convene-launch-2 0\n"}) {
    INFO(bytes);
    TaskReader reader;
    CHECK_STATUS(reader.Add(bytes), absl::StatusCode::kInvalidArgument, "the same version");
  }
  // Counts that the texts do not have, and a variable without a name.
  for (std::string body : {"0|r|/|0|", "9|r|/|1|", "9|r|/|1|=x|", "9|r|/|x|", "9|"}) {
    INFO(body);
    std::replace(body.begin(), body.end(), '|', '\0');
    TaskReader reader;
    CHECK_STATUS(reader.Add("convene-launch-2 " + std::to_string(body.size()) + "\n" + body),
                 absl::StatusCode::kInvalidArgument, "the same version");
  }
}

TEST_CASE("signals as requests and back; any other signal is a request to terminate") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    CHECK(SignalIn(RequestOf(signal)) == signal);
  }
  CHECK(RequestOf(SIGUSR1) == Request::kTerminate);
  CHECK(SignalIn(Request::kNone) == 0);
  CHECK(SignalIn(Request::kAtOnce) == 0);
}

TEST_CASE("marked lines are news, all others are not") {
  CHECK_FALSE(ReadNews(StartedLine())->exit_code.has_value());
  CHECK(ReadNews(EndedLine(255))->exit_code == 255);
  CHECK_FALSE(ReadNews("convene launched: started").has_value());
  CHECK_FALSE(ReadNews(EndedLine(1) + "x").has_value());
  CHECK_FALSE(ReadNews("").has_value());
}

TEST_CASE("heartbeats are taken out wherever they stand, in pieces of any size") {
  const std::string mark(HeartbeatMark());
  // The agent's line is parted by a heartbeat; the last one is cut off by the stream's end.
  const std::string bytes = mark + "a li" + mark + mark + "ne\n\x1e" +
                            "convene launched: ended 3\n" + mark + "\x1e" + "con";
  for (const size_t piece : {1u, 5u, 4096u}) {
    HeartbeatFilter filter;
    std::string others;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      others += filter.Add(absl::string_view(bytes).substr(at, piece));
    }
    CHECK(others ==
          "a line\n\x1e"
          "convene launched: ended 3\n");
    CHECK(filter.End() ==
          "\x1e"
          "con");
    CHECK(filter.End().empty());
  }
}

TEST_CASE("only what may become a heartbeat waits") {
  HeartbeatFilter filter;
  CHECK(filter.Add("a prompt: ") == "a prompt: ");
  CHECK(filter.Add("\x1e").empty());
  CHECK(filter.Add("x") == "\x1ex");
}

}  // namespace
}  // namespace convene::launcher
