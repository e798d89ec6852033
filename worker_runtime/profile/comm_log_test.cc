#include "worker_runtime/profile/comm_log.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker {
namespace {

MonotonicTime At(int milliseconds) {
  return MonotonicTime::FromEpoch(absl::Milliseconds(milliseconds));
}
OpSpan Op(int begin, int end) { return {.op = "MatMul", .begin = At(begin), .end = At(end)}; }
OpSpan Call(const char* op, const OpDetail& detail, int begin, int end) {
  return {.op = op, .detail = detail, .begin = At(begin), .end = At(end)};
}
constexpr OpDetail kSum = {.operation = "reduce_scatter", .bytes = 4'000'000, .ranks = 4};

std::string TextOf(CommLog& log, const std::vector<OpSpan>& compute,
                   const std::vector<OpSpan>& beside) {
  log.Add({{.spans = compute}, {.spans = beside}});
  return log.Text(1);
}

TEST_CASE("the factors of the bus bandwidth are those of nccl-tests") {
  CHECK(BusFactor("all_reduce", 4) == 1.5);
  CHECK(BusFactor("all_gather", 4) == 0.75);
  CHECK(BusFactor("reduce_scatter", 2) == 0.5);
  CHECK(BusFactor("all_to_all", 8) == 0.875);
  CHECK(BusFactor("broadcast", 8) == 1);
  CHECK(BusFactor("shift", 8) == 1);
}

TEST_CASE("a line has the calls, the bytes, the time, both bandwidths, and what was hidden") {
  CommLog log;
  log.Add({{.spans = {Op(0, 10), Op(20, 30), Op(50, 60)}},
           {.spans = {Call("communication/dp", kSum, 5, 25)}}});  // hidden: 5 to 10, 20 to 25
  log.Add({{.spans = {Op(100, 110)}}, {.spans = {Call("communication/dp", kSum, 90, 110)}}});
  CHECK(log.Text(2) ==
        "communication of 2 steps     calls/step    MB/call   ms/step  algbw GB/s  busbw GB/s  "
        "hidden\n"
        "dp reduce_scatter                   1.0      4.000     20.00       0.200       0.150   "
        "50.0%\n");
}

TEST_CASE("a collective of the main stream hides nothing, and hides no other one") {
  CommLog log;
  const std::string text = TextOf(
      log,
      {Op(0, 10),
       Call("communication/tp", {.operation = "all_reduce", .bytes = 1, .ranks = 2}, 10, 20)},
      {Call("communication/dp", kSum, 0, 20)});
  CHECK_THAT(text, Catch::Contains(" 0.0%\n"));
  CHECK_THAT(text, Catch::Contains(" 50.0%\n"));
}

TEST_CASE("passes do not count as arithmetic, since ranks wait within them") {
  CommLog log;
  const OpSpan pass = Call("forward", {.chunk = 0, .microbatch = 0}, 0, 100);
  CHECK_THAT(TextOf(log, {Op(0, 10), pass}, {Call("communication/dp", kSum, 0, 100)}),
             Catch::Contains(" 10.0%\n"));
}

TEST_CASE("a collective that ends behind the known ops waits for those that run beside it") {
  CommLog log;
  log.Add({{.spans = {Op(0, 10)}}, {.spans = {Call("communication/dp", kSum, 5, 25)}}});
  CHECK_THAT(TextOf(log, {Op(10, 20), Op(24, 30)}, {}), Catch::Contains(" 80.0%\n"));
}

TEST_CASE("a collective that is known a step late is compared with the ops of its own step") {
  CommLog log;
  log.Add({{.spans = {Op(0, 10)}}, {}});
  CHECK_THAT(TextOf(log, {Op(30, 40)}, {Call("communication/dp", kSum, 0, 20)}),
             Catch::Contains(" 50.0%\n"));
}

TEST_CASE("messages have no bandwidth, groups of one no line, and calls without room are told") {
  CommLog log;
  log.Add(
      {{.spans = {Call("communication/pp", {.operation = kReceive, .bytes = 8, .ranks = 2}, 0, 1),
                  Call("communication/tp", {.operation = "all_reduce", .bytes = 8, .ranks = 1}, 1,
                       2)},
        .left_out = 3}});
  const std::string text = log.Text(1);
  CHECK_THAT(text, Catch::Contains("pp recv"));
  CHECK_THAT(text, Catch::Contains("-           -       -\n"));
  CHECK(text.find("tp") == std::string::npos);
  CHECK_THAT(text, Catch::Contains("not in this table: 3 calls"));
  CHECK(CommLog().Text(0).empty());
}

}  // namespace
}  // namespace convene::worker
