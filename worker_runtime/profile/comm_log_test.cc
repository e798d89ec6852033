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

// Of the last line, after these calls.
int HiddenPercent(CommLog& log, const std::vector<OpSpan>& compute,
                  const std::vector<OpSpan>& beside) {
  log.Add({{.spans = compute}, {.spans = beside}});
  const CommLine line = log.Sheet().lines.back();
  return static_cast<int>(100 * line.hidden_seconds / line.seconds + 0.5);
}

TEST_CASE("the factors of the bus bandwidth are those of nccl-tests") {
  CHECK(BusFactor("all_reduce", 4) == 1.5);
  CHECK(BusFactor("all_gather", 4) == 0.75);
  CHECK(BusFactor("reduce_scatter", 2) == 0.5);
  CHECK(BusFactor("all_to_all", 8) == 0.875);
  CHECK(BusFactor("broadcast", 8) == 1);
  CHECK(BusFactor("shift", 8) == 1);
}

TEST_CASE("a line has the calls, the bytes, the time, and how much of it was hidden") {
  CommLog log;
  log.Add({{.spans = {Op(0, 10), Op(20, 30), Op(50, 60)}},
           {.spans = {Call("communication/dp", kSum, 5, 25)}}});  // hidden: 5 to 10, 20 to 25
  log.Add({{.spans = {Op(100, 110)}}, {.spans = {Call("communication/dp", kSum, 90, 110)}}});
  const CommSheet sheet = log.Sheet();
  REQUIRE(sheet.lines.size() == 1);
  const CommLine& line = sheet.lines[0];
  CHECK(std::string(line.axis) == "dp");
  CHECK(std::string(line.operation) == "reduce_scatter");
  CHECK(line.ranks == 4);
  CHECK(line.calls == 2);
  CHECK(line.bytes == 8'000'000);
  CHECK(line.seconds == Approx(0.04));
  CHECK(line.hidden_seconds == Approx(0.02));
  CHECK(sheet.left_out == 0);
}

TEST_CASE("a collective of the main stream hides nothing, and hides no other one") {
  CommLog log;
  CHECK(HiddenPercent(
            log,
            {Op(0, 10),
             Call("communication/tp", {.operation = "all_reduce", .bytes = 1, .ranks = 2}, 10, 20)},
            {Call("communication/dp", kSum, 0, 20)}) == 50);
  CHECK(log.Sheet().lines.front().hidden_seconds == 0);
}

TEST_CASE("passes do not count as arithmetic, since ranks wait within them") {
  CommLog log;
  const OpSpan pass = Call("forward", {.chunk = 0, .microbatch = 0}, 0, 100);
  CHECK(HiddenPercent(log, {Op(0, 10), pass}, {Call("communication/dp", kSum, 0, 100)}) == 10);
}

TEST_CASE("a collective that ends behind the known ops waits for those that run beside it") {
  CommLog log;
  log.Add({{.spans = {Op(0, 10)}}, {.spans = {Call("communication/dp", kSum, 5, 25)}}});
  CHECK(HiddenPercent(log, {Op(10, 20), Op(24, 30)}, {}) == 80);
}

TEST_CASE("a collective that is known a step late is compared with the ops of its own step") {
  CommLog log;
  log.Add({{.spans = {Op(0, 10)}}, {}});
  CHECK(HiddenPercent(log, {Op(30, 40)}, {Call("communication/dp", kSum, 0, 20)}) == 50);
}

TEST_CASE(
    "an axis has a line an operation, groups of one have none, and calls without room count") {
  CommLog log;
  const std::string long_name = "communication/" + std::string(40, 'x');
  log.Add({{.spans = {Call("communication/dp", kSum, 0, 1),
                      Call("communication/dp", {.operation = "all_gather", .ranks = 4}, 1, 2),
                      Call("communication/dp", kSum, 2, 3), Call(long_name.c_str(), kSum, 3, 4),
                      Call("communication/tp", {.operation = "all_reduce", .ranks = 1}, 4, 5)},
            .left_out = 2},
           {.left_out = 1}});
  const CommSheet sheet = log.Sheet();
  REQUIRE(sheet.lines.size() == 3);
  CHECK(sheet.lines[0].calls == 2);
  CHECK(std::string(sheet.lines[1].operation) == "all_gather");
  CHECK(std::string(sheet.lines[2].axis) == std::string(31, 'x'));
  CHECK(sheet.left_out == 3);
}

}  // namespace
}  // namespace convene::worker
