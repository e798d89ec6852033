#include "agent/output/line_assembler.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace convene::agent {
namespace {

struct Fixture {
  LineAssembler assembler;
  std::vector<std::string> lines;
  LineAssembler::OnLine keep = [this](absl::string_view line) { lines.emplace_back(line); };
  void Add(absl::string_view bytes) { assembler.Add(bytes, now, keep); }
  // The open line as it is shown after so many seconds more; "": it is not.
  std::string ShownAfter(int seconds) {
    now = now + absl::Seconds(seconds);
    std::string shown;
    assembler.ShowOpen(now, [&](absl::string_view line) { shown = std::string(line); });
    return shown;
  }

  MonotonicTime now = MonotonicTime::FromEpoch(absl::Seconds(1000));
};

TEST_CASE_METHOD(Fixture, "lines come out whole, however the bytes arrive") {
  Add("one\ntw");
  CHECK(lines == std::vector<std::string>{"one"});
  Add("o\r\n\nthr");
  Add("ee");
  assembler.End(keep);
  CHECK(lines == std::vector<std::string>{"one", "two", "", "three"});
  assembler.End(keep);
  CHECK(lines.size() == 4);
}

TEST_CASE_METHOD(Fixture, "a progress line that was redrawn ends as its last state") {
  Add("\r 10%");
  CHECK(assembler.InPlace() == " 10%");
  Add("\r 20%\r");
  CHECK(assembler.InPlace() == " 20%");
  CHECK(lines.empty());
  Add("\n");
  CHECK(lines == std::vector<std::string>{" 20%"});
  CHECK(assembler.InPlace().empty());
}

TEST_CASE_METHOD(Fixture, "an open line without a carriage return is not shown yet") {
  Add("loading ...");
  CHECK(assembler.InPlace().empty());
}

TEST_CASE_METHOD(Fixture, "a line without end is cut, nothing of it is lost") {
  const std::string endless(LineAssembler::kLongestLine * 2 + 5, 'x');
  Add(endless);
  Add("\n");
  REQUIRE(lines.size() == 3);
  CHECK(lines[0].size() == LineAssembler::kLongestLine);
  CHECK(lines[0] + lines[1] + lines[2] == endless);
}

TEST_CASE_METHOD(Fixture, "a line of just the longest length has no empty line behind it") {
  const std::string longest(LineAssembler::kLongestLine, 'x');
  for (const char* const end : {"\n", "\r\n"}) {
    lines.clear();
    Add(longest);
    Add(end);
    Add("\nnext\n");
    CHECK(lines == std::vector<std::string>{longest, "", "next"});
  }
}

TEST_CASE_METHOD(Fixture, "an open line that waits is shown as it stands, then only what is new") {
  Add("loading shard 17 ... ");
  CHECK(assembler.due() == now + absl::Seconds(10));
  CHECK(ShownAfter(9) == "");
  CHECK(ShownAfter(1) == "loading shard 17 ... ");
  CHECK(assembler.due() == MonotonicTime::InfiniteFuture());
  CHECK(ShownAfter(100) == "");
  Add("still ");
  CHECK(ShownAfter(9) == "");
  CHECK(ShownAfter(1) == "still ");
  Add("at it ");
  CHECK(ShownAfter(9) == "");
  CHECK(ShownAfter(1) == "at it ");
  Add("done\n");
  CHECK(lines == std::vector<std::string>{"loading shard 17 ... still at it done"});
  CHECK(ShownAfter(100) == "");
}

TEST_CASE_METHOD(Fixture, "a line that is redrawn is shown now and then, in its last state") {
  std::vector<std::string> shown;
  for (int second = 0; second < 30; ++second) {
    Add("\rprogress " + std::to_string(second));
    const std::string state = ShownAfter(1);
    if (!state.empty()) shown.push_back(state);
  }
  CHECK(shown == std::vector<std::string>{"progress 9", "progress 19", "progress 29"});
  CHECK(lines.empty());
}

TEST_CASE_METHOD(Fixture, "a line that is redrawn with the same text is shown once") {
  Add("\ridle");
  CHECK(ShownAfter(10) == "idle");
  for (int second = 0; second < 30; ++second) {
    Add("\ridle");
    CHECK(ShownAfter(1) == "");
  }
  Add("\ridle no more");
  CHECK(ShownAfter(10) == "idle no more");
}

TEST_CASE_METHOD(Fixture, "lines of a quick writer that arrive in pieces are never shown open") {
  for (int second = 0; second < 30; ++second) {
    Add("end of a line\nbegin ");
    CHECK(ShownAfter(1) == "");
  }
}

}  // namespace
}  // namespace convene::agent
