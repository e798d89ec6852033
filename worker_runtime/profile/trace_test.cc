#include "worker_runtime/profile/trace.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace convene::worker {
namespace {

MonotonicTime At(int microseconds) {
  return MonotonicTime::FromEpoch(absl::Microseconds(microseconds));
}

OpSpan Op(const char* op, const OpDetail& detail, int begin, int end) {
  return {.op = op, .detail = detail, .begin = At(begin), .end = At(end)};
}

std::string EventsOf(const std::vector<OpSpan>& spans) {
  return TraceEvents({.streams = {{.name = "compute", .calls = {.spans = spans}}}}, {});
}

TEST_CASE("a rank is a process, a stream a thread, a call a slice in rank 0's time") {
  const RankTrace trace{
      .rank = 3,
      .place = "pp 1, dp 0",
      .steps = {{.step = 10, .begin = At(100), .end = At(300)}},
      .streams = {
          {.name = "communication",
           .calls = {.spans = {Op("communication/dp",
                                  {.operation = "all_reduce", .bytes = 64, .ranks = 2}, 110, 130)},
                     .left_out = 7}}}};
  const ClockOffset clock{.offset = absl::Microseconds(-50), .error = absl::Microseconds(2)};
  CHECK(TraceEvents(trace, clock) ==
        R"({"ph":"M","pid":3,"name":"process_name","args":{"name":"rank 3: pp 1, dp 0"}},
{"ph":"M","pid":3,"name":"process_sort_index","args":{"sort_index":3}},
{"ph":"M","pid":3,"name":"process_labels","args":{"labels":"clock exact to 2.0 us, 7 calls left out for want of room"}},
{"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"steps"}},
{"ph":"M","pid":3,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},
{"ph":"X","pid":3,"tid":1,"name":"step 10","ts":50.000,"dur":200.000,"args":{}},
{"ph":"M","pid":3,"tid":2,"name":"thread_name","args":{"name":"communication"}},
{"ph":"M","pid":3,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},
{"ph":"X","pid":3,"tid":2,"name":"dp all_reduce","ts":60.000,"dur":20.000,"args":{"axis":"dp","bytes":64,"ranks":2}})");
}

TEST_CASE("a pass stands before its ops, and holds also one that seems to end behind it") {
  const std::string text =
      EventsOf({Op("MatMul", {}, 10, 20), Op("MatMul", {}, 30, 42),
                Op("forward", {.chunk = 1, .microbatch = 3}, 10, 40), Op("AdamW", {}, 50, 60)});
  const size_t pass = text.find(
      R"("name":"forward mb 3 chunk 1","ts":10.000,"dur":30.000,"args":{"microbatch":3,"chunk":1})");
  REQUIRE(pass != std::string::npos);
  CHECK(pass < text.find(R"("name":"MatMul","ts":10.000,"dur":10.000)"));
  CHECK(text.find(R"("name":"MatMul","ts":30.000,"dur":10.000)") != std::string::npos);
  CHECK(text.find(R"("name":"AdamW","ts":50.000,"dur":10.000)") != std::string::npos);
}

TEST_CASE("times are rounded to nanoseconds, and no slice ends behind its parent for that") {
  // A GPU's times: the pass ends with its op, at 20.25 ns.
  const auto at = [](int quarters) {
    return MonotonicTime::FromEpoch(quarters * absl::Nanoseconds(1) / 4);
  };
  const std::string text = EventsOf(
      {{.op = "forward", .detail = {.chunk = 0, .microbatch = 0}, .begin = at(3), .end = at(81)},
       {.op = "MatMul", .begin = at(40), .end = at(81)}});
  CHECK(text.find(R"("ts":0.000,"dur":0.020)") != std::string::npos);
  CHECK(text.find(R"("ts":0.010,"dur":0.010)") != std::string::npos);
}

TEST_CASE("a call of a group of one moves nothing, and is no slice") {
  const OpDetail alone{.operation = "all_reduce", .bytes = 64, .ranks = 1};
  CHECK(EventsOf({Op("communication/tp", alone, 1, 2)}).find("all_reduce") == std::string::npos);
}

TEST_CASE("a clock's offset is that of the shortest round trip, exact to half of it") {
  const ClockOffset clock = OffsetBy({{.sent = At(0), .other = At(1090), .received = At(100)},
                                      {.sent = At(200), .other = At(1207), .received = At(210)},
                                      {.sent = At(300), .other = At(1300), .received = At(350)}});
  CHECK(clock.offset == absl::Microseconds(1002));
  CHECK(clock.error == absl::Microseconds(5));
}

}  // namespace
}  // namespace convene::worker
