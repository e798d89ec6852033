#include "agent/output/first_cause.h"

#include <csignal>

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

ErrorRecord Record(const std::string& line, int seconds, int written_ms = 0) {
  return {{line}, absl::FromUnixSeconds(seconds), absl::FromUnixMillis(written_ms)};
}

WorkerExited Ended(int local_rank, int exit_code, int signal = 0) {
  WorkerExited exited;
  exited.local_rank = local_rank;
  exited.status.exit_code = exit_code;
  exited.status.signal = signal;
  return exited;
}

std::vector<int> Order(const std::map<int, ErrorRecord>& records, std::vector<WorkerExited> ended,
                       const std::set<int>& in_session = {}) {
  OrderByCause(records, in_session, ended);
  std::vector<int> ranks;
  for (const WorkerExited& exited : ended) ranks.push_back(exited.local_rank);
  return ranks;
}

TEST_CASE("the earliest record comes first, those without come after, in their order") {
  CHECK(Order({{2, Record("b", 8)}, {3, Record("a", 7)}},
              {Ended(0, 1), Ended(1, 0, SIGABRT), Ended(2, 1), Ended(3, 1)}) ==
        std::vector<int>{3, 2, 0, 1});
}

TEST_CASE("of records of one second, the file that was written first counts") {
  CHECK(Order({{0, Record("b", 7, 7900)}, {1, Record("a", 7, 7100)}}, {Ended(0, 1), Ended(1, 1)}) ==
        std::vector<int>{1, 0});
}

TEST_CASE("a worker that asks to be started again never masks one that failed") {
  CHECK(Order({{0, Record("peer is gone", 1)}}, {Ended(0, 75), Ended(1, 0, SIGSEGV), Ended(2, 0)},
              /*in_session=*/{0}) == std::vector<int>{2, 1, 0});
  CHECK(Order({{0, Record("no space", 1)}}, {Ended(1, 0, SIGSEGV), Ended(0, 75)}) ==
        std::vector<int>{0, 1});
}

TEST_CASE("each failure tells what it recorded, a success nothing") {
  std::vector<WorkerExited> ended = {Ended(0, 0), Ended(1, 1)};
  std::map<int, ErrorRecord> records = {{0, Record("stale", 1)}, {1, Record("boom", 2)}};
  records.at(1).path = "/logs/1/error.json";
  OrderByCause(records, {}, ended);
  CHECK(ended[0].error_lines.empty());
  CHECK(ended[1].error_lines == std::vector<std::string>{"boom"});
  CHECK(ended[1].error_file == "/logs/1/error.json");
}

TEST_CASE("an error recorded before by a worker that still ends is told with the first failure") {
  std::vector<WorkerExited> ended = {Ended(0, 1)};
  OrderByCause({{0, Record("reset by peer", 9)}, {1, Record("out of memory", 8)}}, {}, ended);
  REQUIRE(ended[0].error_lines.size() == 2);
  CHECK(ended[0].error_lines[0] == "local rank 1 recorded an error before it: out of memory");
  CHECK(ended[0].error_lines[1] == "reset by peer");
  ended = {Ended(0, 1)};
  OrderByCause({{0, Record("out of memory", 8)}, {1, Record("reset by peer", 9)}}, {}, ended);
  CHECK(ended[0].error_lines == std::vector<std::string>{"out of memory"});
}

}  // namespace
}  // namespace convene::agent
