#include "agent/output/recent_lines.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/thread.h"

namespace convene::agent {
namespace {

using rendezvous::LogBatch;
using rendezvous::LogFilter;

const absl::Time kTime = absl::FromUnixMicros(1'700'000'000'000'000);

void Print(RecentLines& lines, int rank, absl::string_view text, bool is_stderr = false) {
  lines.Add(kTime, rank, rank % 2, is_stderr, text);
}

std::vector<std::string> TextsOf(const LogBatch& batch) {
  std::vector<std::string> texts;
  for (const auto& line : batch.lines) texts.push_back(line.text);
  return texts;
}

// The lines that are there now, without following.
LogBatch All(RecentLines& lines, const LogFilter& filter = {}, int tail = -1) {
  const auto reader = lines.Open(filter, tail, false, 0);
  LogBatch all;
  LogBatch batch;
  while (lines.Next(*reader, &batch)) {
    all.lines.insert(all.lines.end(), batch.lines.begin(), batch.lines.end());
    all.lost_lines += batch.lost_lines;
    all.next_line = batch.next_line;
    all.caught_up = batch.caught_up;
  }
  lines.Forget(reader);
  return all;
}

TEST_CASE("a reader gets whose line it is, when, and on which stream") {
  RecentLines lines;
  lines.Add(kTime, 9, 1, true, "loss 2.5");
  const LogBatch batch = All(lines);
  REQUIRE(batch.lines.size() == 1);
  CHECK(batch.lines[0].text == "loss 2.5");
  CHECK(batch.lines[0].time == kTime);
  CHECK(batch.lines[0].rank == 9);
  CHECK(batch.lines[0].local_rank == 1);
  CHECK(batch.lines[0].is_stderr);
  CHECK(!batch.lines[0].is_cut);
  CHECK(batch.next_line == 2);
  CHECK(batch.caught_up);
}

TEST_CASE("with nothing there a reader has caught up at once") {
  RecentLines lines;
  const LogBatch batch = All(lines);
  CHECK(batch.lines.empty());
  CHECK(batch.caught_up);
  CHECK(batch.next_line == 1);
}

TEST_CASE("the tail counts the lines that the filter lets pass") {
  RecentLines lines;
  for (int i = 0; i < 10; ++i) Print(lines, i % 2, absl::StrCat("line ", i), i >= 8);
  LogFilter filter;
  filter.ranks = {1};
  filter.without_stderr = true;
  CHECK(TextsOf(All(lines, filter, 2)) == std::vector<std::string>{"line 5", "line 7"});
  CHECK(TextsOf(All(lines, {}, 1)) == std::vector<std::string>{"line 9"});
  CHECK(All(lines, filter, 0).lines.empty());
  CHECK(All(lines, {}, 100).lines.size() == 10);
}

TEST_CASE("who does not follow gets what was there when it was opened") {
  RecentLines lines;
  Print(lines, 0, "before");
  const auto reader = lines.Open({}, 1, false, 0);
  Print(lines, 0, "after");
  LogBatch batch;
  REQUIRE(lines.Next(*reader, &batch));
  CHECK(TextsOf(batch) == std::vector<std::string>{"before"});
  CHECK(batch.caught_up);
  CHECK(!lines.Next(*reader, &batch));
}

TEST_CASE("the ring keeps the last lines, each whole, however they wrap") {
  RecentLines lines(RecentLines::kLeastBytes);
  for (int i = 0; i < 5000; ++i) Print(lines, 0, absl::StrCat(std::string(i % 97, 'x'), i));
  const LogBatch batch = All(lines);
  REQUIRE(batch.lines.size() > 100);
  const int first = 5000 - static_cast<int>(batch.lines.size());
  for (int i = first; i < 5000; ++i) {
    REQUIRE(batch.lines[i - first].text == absl::StrCat(std::string(i % 97, 'x'), i));
  }
  CHECK(batch.lost_lines == 0);
  CHECK(batch.next_line == 5001);
}

TEST_CASE("a reader that is too slow is told how many of its lines are lost") {
  RecentLines lines(RecentLines::kLeastBytes);
  LogFilter filter;
  filter.ranks = {1};
  const auto reader = lines.Open(filter, -1, true, 0);
  LogBatch batch;
  REQUIRE(lines.Next(*reader, &batch));
  for (int i = 0; i < 3000; ++i) Print(lines, i % 3, absl::StrCat("line ", i));
  lines.Close();
  uint64_t got = 0;
  uint64_t lost = 0;
  std::string last;
  while (lines.Next(*reader, &batch)) {
    CHECK((lost == 0 || batch.lost_lines == 0));
    lost += batch.lost_lines;
    got += batch.lines.size();
    if (!batch.lines.empty()) last = batch.lines.back().text;
  }
  CHECK(got + lost == 1000);
  CHECK(lost > 500);
  CHECK(last == "line 2998");
}

TEST_CASE("a reader that comes back goes on where it was, and is told what it missed") {
  RecentLines lines(RecentLines::kLeastBytes);
  for (int i = 1; i <= 5; ++i) Print(lines, 0, absl::StrCat(i));
  LogBatch batch;
  const auto back = lines.Open({}, 100, true, 4);
  REQUIRE(lines.Next(*back, &batch));
  CHECK(TextsOf(batch) == std::vector<std::string>{"4", "5"});
  const auto up_to_date = lines.Open({}, 100, true, 6);
  REQUIRE(lines.Next(*up_to_date, &batch));
  CHECK(batch.lines.empty());
  CHECK(batch.caught_up);

  for (int i = 6; i <= 5000; ++i) Print(lines, 0, absl::StrCat(i));
  const auto late = lines.Open({}, 100, true, 6);
  REQUIRE(lines.Next(*late, &batch));
  CHECK(batch.lost_lines > 0);
  CHECK(batch.lines[0].text == absl::StrCat(6 + batch.lost_lines));
}

TEST_CASE("a long line is cut, and says so") {
  RecentLines lines;
  Print(lines, 0, std::string(rendezvous::kLongestPublishedLine + 1, 'x'));
  const LogBatch batch = All(lines);
  CHECK(batch.lines.at(0).text.size() == rendezvous::kLongestPublishedLine);
  CHECK(batch.lines.at(0).is_cut);
}

TEST_CASE("much comes in batches that are bounded") {
  RecentLines lines;
  for (int i = 0; i < 20000; ++i) Print(lines, 0, "");
  const auto reader = lines.Open({}, -1, false, 0);
  LogBatch batch;
  size_t got = 0;
  while (lines.Next(*reader, &batch)) {
    CHECK(batch.lines.size() * rendezvous::kLineOverhead <= rendezvous::kFullBatchBytes);
    got += batch.lines.size();
  }
  CHECK(got == 20000);
}

TEST_CASE("who follows is woken by a line, and ends with the last one") {
  RecentLines lines;
  LogFilter filter;
  filter.local_ranks = {0};
  const auto reader = lines.Open(filter, 0, true, 0);
  std::vector<std::string> texts;
  Thread follower("follower", [&] {
    LogBatch batch;
    while (lines.Next(*reader, &batch)) {
      for (const auto& line : batch.lines) texts.push_back(line.text);
    }
  });
  Print(lines, 0, "a");
  Print(lines, 1, "not for it");
  Print(lines, 2, "b");
  lines.Close();
  Print(lines, 0, "too late");
  follower.Join();
  CHECK(texts == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a reader that is stopped waits no longer") {
  RecentLines lines;
  const auto reader = lines.Open({}, 0, true, 0);
  LogBatch batch;
  REQUIRE(lines.Next(*reader, &batch));
  bool more = true;
  Thread follower("follower", [&] { more = lines.Next(*reader, &batch); });
  lines.Stop(*reader);
  follower.Join();
  CHECK(!more);
}

}  // namespace
}  // namespace convene::agent
