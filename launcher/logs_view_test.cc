#include "launcher/logs_view.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

namespace convene::launcher {
namespace {

using rendezvous::AgentId;
using rendezvous::LogBatch;
using rendezvous::LogsGone;
using rendezvous::LogStart;
using rendezvous::RunEnded;

const MonotonicTime kNow = MonotonicTime::FromEpoch(absl::Seconds(100));
const absl::Time kTime = absl::FromUnixMicros(1'763'769'600'000'000);

LogBatch Batch(int node, std::vector<std::pair<int, std::string>> lines, bool caught_up = false) {
  LogBatch batch;
  batch.agent = AgentId(static_cast<uint64_t>(node));
  batch.host = "node" + std::to_string(node);
  batch.role = "default";
  for (auto& [second, text] : lines) {
    batch.lines.push_back({kTime + absl::Seconds(second), node, 0, false, std::move(text), false});
  }
  batch.next_line = 1 + lines.size();
  batch.caught_up = caught_up;
  return batch;
}

LogStart Nodes(int count) {
  LogStart start;
  for (int node = 1; node <= count; ++node) {
    start.nodes.push_back(
        {AgentId(static_cast<uint64_t>(node)), "node" + std::to_string(node), true});
  }
  return start;
}

LogsView ViewOf(bool follow, bool json = false, const std::string& prefix = "[${rank}] ",
                bool to_terminal = false) {
  LogsView view({"run", follow, json, prefix, to_terminal});
  view.Begin(kNow);
  return view;
}

std::string Shown(LogsView& view, bool notices = false) {
  std::string text;
  for (const LogsView::Chunk& chunk : view.TakeChunks()) {
    if (chunk.is_notice == notices) text += chunk.text;
  }
  return text;
}

TEST_CASE("the lines from before are shown in the order of their times, once all have told them") {
  LogsView view = ViewOf(false);
  view.Take(kNow, Nodes(2));
  view.Take(kNow, Batch(1, {{1, "a"}, {4, "d"}}, true));
  CHECK(Shown(view).empty());
  CHECK(!view.done());
  view.Take(kNow, Batch(2, {{2, "b"}}));
  view.Take(kNow, Batch(2, {{3, "c"}}, true));
  CHECK(Shown(view) == "[1] a\n[2] b\n[2] c\n[1] d\n");
  CHECK(view.done());
}

TEST_CASE("of a worker's escape sequences colors alone reach a terminal, and all a file") {
  const struct {
    const char *text, *shown;
  } rows[] = {
      {"\x1B[1;31mred\x1B[0m \x1B[mplain", "\x1B[1;31mred\x1B[0m \x1B[mplain"},
      {"a\tb\rc", "a\tb\rc"},
      {"\x1B[2J\x1B[?25lbar\x1B[A", "bar"},
      {"\x1B[>4;2m\x1B[4 m", ""},  // the keyboard's, and no color
      {"\x1B]52;c;ZXZpbA==\x07", "?]52;c;ZXZpbA==?"},
      {"caf\u00e9\xC2\x9B\x32J\n\x08", "caf\u00e9?2J??"},
      {"\x1B", "?"},
      {"\x1B[3", "?[3"},
  };
  for (const auto& [text, shown] : rows) {
    for (const bool to_terminal : {true, false}) {
      LogsView view = ViewOf(false, false, "", to_terminal);
      view.Take(kNow, Nodes(1));
      view.Take(kNow, Batch(1, {{1, text}}, true));
      CHECK(Shown(view) == std::string(to_terminal ? shown : text) + "\n");
    }
  }
}

TEST_CASE("a node that does not answer holds the others up for a while, and is named") {
  LogsView view = ViewOf(false);
  view.Take(kNow, Nodes(2));
  view.Take(kNow, Batch(1, {{1, "a"}}, true));
  view.OnTime(kNow + absl::Seconds(4));
  CHECK(!view.done());
  CHECK(view.deadline() == kNow + LogsView::kAnswerPatience);
  view.OnTime(view.deadline());
  CHECK(view.done());
  const auto chunks = view.TakeChunks();
  REQUIRE(chunks.size() == 2);
  CHECK(chunks[0].is_notice);
  CHECK_THAT(chunks[0].text, Catch::Contains("no answer within 5s from node2"));
  CHECK(chunks[1].text == "[1] a\n");
}

TEST_CASE("who follows sees what comes at once, and who goes and joins") {
  LogsView view = ViewOf(true);
  view.Take(kNow, Nodes(1));
  view.Take(kNow, Batch(1, {{1, "a"}}, true));
  CHECK(Shown(view) == "[1] a\n");
  CHECK(view.deadline() == MonotonicTime::InfiniteFuture());
  view.Take(kNow, Batch(1, {{2, "b"}}));
  CHECK(Shown(view) == "[1] b\n");
  view.Take(kNow, Batch(3, {{2, "c"}}));
  view.Take(kNow, LogsGone{AgentId(1)});
  CHECK(Shown(view, true) ==
        "convene: node3 has joined\nconvene: node1 is gone\n"
        "convene: the last lines of node1 may be missing here\n");
  CHECK(!view.done());
}

TEST_CASE("following ends with the run, after the last lines of all nodes") {
  LogsView view = ViewOf(true);
  view.Take(kNow, Nodes(2));
  view.Take(kNow, Batch(1, {}, true));
  view.Take(kNow, Batch(2, {}, true));
  view.Take(kNow, RunEnded{"succeeded", "all nodes did"});
  CHECK(!view.done());
  view.Take(kNow, LogsGone{AgentId(1)});
  CHECK(Shown(view, true) == "convene: the last lines of node1 may be missing here\n");
  LogBatch last = Batch(2, {{1, "last"}});
  last.is_last = true;
  view.Take(kNow, last);
  CHECK(Shown(view) == "[2] last\n");
  view.Take(kNow, LogsGone{AgentId(2)});
  CHECK(view.done());
  CHECK(Shown(view, true) == "convene: the run run is over: succeeded (all nodes did)\n");
}

TEST_CASE("a node that hangs at the end of the run is not waited for for ever") {
  LogsView view = ViewOf(true);
  view.Take(kNow, Nodes(1));
  view.Take(kNow, Batch(1, {}, true));
  view.Take(kNow, RunEnded{"failed", "why"});
  CHECK(view.deadline() == kNow + LogsView::kEndPatience);
  view.OnTime(view.deadline());
  CHECK(view.done());
  CHECK_THAT(Shown(view, true), Catch::Contains("the last lines of node1 may be missing here"));
}

TEST_CASE("a daemon that ends with its run has said the end") {
  LogsView view = ViewOf(true);
  view.Take(kNow, Nodes(1));
  view.Take(kNow, Batch(1, {}, true));
  view.Break();
  CHECK(!view.done());
  view.Begin(kNow);
  view.Take(kNow, Nodes(1));
  view.Take(kNow, Batch(1, {}, true));
  view.Take(kNow, RunEnded{"succeeded", "all nodes did"});
  view.Break();
  CHECK(view.done());
}

TEST_CASE("a viewer that comes back asks for the lines that it has not had") {
  LogsView view = ViewOf(true);
  view.Take(kNow, Nodes(2));
  view.Take(kNow, Batch(1, {{1, "a"}}, true));
  view.Take(kNow, Batch(1, {{2, "b"}, {3, "c"}}));
  REQUIRE(view.seen().size() == 1);
  CHECK(view.seen()[0].agent == AgentId(1));
  CHECK(view.seen()[0].next_line == 3);
}

TEST_CASE("lost lines are told where they are missing") {
  LogsView view = ViewOf(true);
  view.Take(kNow, Nodes(1));
  view.Take(kNow, Batch(1, {{1, "a"}}, true));
  LogBatch batch = Batch(1, {{2, "b"}});
  batch.lost_lines = 1234;
  view.Take(kNow, batch);
  const auto chunks = view.TakeChunks();
  REQUIRE(chunks.size() == 3);
  CHECK(chunks[1].is_notice);
  CHECK(chunks[1].text == "convene: ... 1234 lines of node1 lost: this viewer was too slow\n");
}

TEST_CASE("an agent of an older version is named") {
  LogsView view = ViewOf(false);
  view.Take(kNow, LogStart{{{AgentId(1), "node1", false}}});
  CHECK(view.done());
  CHECK_THAT(Shown(view, true), Catch::Contains("not shown: node1, whose agents are of an older"));
}

TEST_CASE("the prefix is made as the console's is") {
  LogsView view = ViewOf(false, false, "${hostname} ${role_name}${local_rank}: ");
  view.Take(kNow, Nodes(1));
  LogBatch batch = Batch(1, {{1, "a"}, {2, "b"}}, true);
  batch.lines[1].rank = 5;
  batch.lines[1].local_rank = 4;
  batch.lines[1].is_cut = true;
  view.Take(kNow, batch);
  CHECK(Shown(view) == "node1 default0: a\nnode1 default4: b [...]\n");
}

TEST_CASE("as JSON a line is one object, whatever its bytes") {
  LogsView view = ViewOf(false, true);
  view.Take(kNow, Nodes(1));
  LogBatch batch = Batch(1, {{1, "a \"b\"\t\\ \xff \xc3\xa9"}}, true);
  batch.lines[0].is_stderr = true;
  batch.lost_lines = 2;
  view.Take(kNow, batch);
  CHECK(Shown(view) ==
        "{\"node\":\"node1\",\"lost_lines\":2}\n"
        "{\"time\":\"2025-11-22T00:00:01.000000Z\",\"node\":\"node1\",\"rank\":1,\"local_rank\":0,"
        "\"stream\":\"stderr\",\"text\":\"a \\\"b\\\"\\u0009\\\\ ? \xc3\xa9\"}\n");
}

}  // namespace
}  // namespace convene::launcher
