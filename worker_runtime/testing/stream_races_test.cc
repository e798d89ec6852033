#include "worker_runtime/testing/stream_races.h"

#include <catch2/catch.hpp>

namespace convene::worker::testing {
namespace {

using Kind = StreamCall::Kind;
constexpr auto kCompute = StreamNumber::kCompute;
constexpr auto kCommunication = StreamNumber::kCommunication;

StreamCall Op(StreamNumber stream, const char* op, std::vector<PageTouch> touches) {
  return {.kind = Kind::kOp, .stream = stream, .op = op, .touches = std::move(touches)};
}
StreamCall Call(Kind kind, StreamNumber stream, int event = -1) {
  return {.kind = kind, .stream = stream, .event = event};
}

using Races = std::vector<std::string>;

TEST_CASE("a write and a read of one page race unless an event stands between them") {
  const StreamCall write = Op(kCompute, "make", {{7, true}});
  const StreamCall read = Op(kCommunication, "send", {{7, false}});
  CHECK(FindRaces({write, read}) == Races{"make in compute and send in communication"});
  CHECK(FindRaces({read, write}) == Races{"send in communication and make in compute"});
  const std::vector<StreamCall> ordered = {write, Call(Kind::kRecord, kCompute, 0),
                                           Call(Kind::kOrder, kCommunication, 0), read};
  CHECK(FindRaces(ordered).empty());
  CHECK(FindRaces(ordered, 1).size() == 1);
  CHECK(FindRaces(ordered, 2).size() == 1);
  CHECK(OrderingCalls(ordered, 0) == std::vector<int>{1, 2});
}

TEST_CASE("an event that was recorded too early orders nothing") {
  CHECK(FindRaces({Call(Kind::kRecord, kCompute, 0), Op(kCompute, "make", {{7, true}}),
                   Call(Kind::kOrder, kCommunication, 0), Op(kCommunication, "send", {{7, false}})})
            .size() == 1);
}

TEST_CASE("reads of one page, or writes of two, do not race") {
  CHECK(
      FindRaces({Op(kCompute, "a", {{1, false}}), Op(kCommunication, "b", {{1, false}})}).empty());
  CHECK(FindRaces({Op(kCompute, "a", {{1, true}}), Op(kCommunication, "b", {{2, true}})}).empty());
  CHECK(FindRaces({Op(kCompute, "a", {{1, true}}), Op(kCommunication, "b", {{1, true}})}).size() ==
        1);
}

TEST_CASE("each stream races with both others") {
  const StreamCall sum = Op(StreamNumber::kLayerCommunication, "sum", {{1, true}});
  CHECK(FindRaces({Op(kCompute, "a", {{1, true}}), Op(kCommunication, "b", {{1, false}}), sum}) ==
        Races{"a in compute and b in communication", "a in compute and sum in layer communication",
              "b in communication and sum in layer communication"});
}

TEST_CASE("an op races with one long before it") {
  CHECK(FindRaces({Op(kCommunication, "gather", {{1, true}}), Op(kCompute, "a", {{2, true}}),
                   Op(kCompute, "b", {{3, true}}), Op(kCompute, "c", {{1, false}})}) ==
        Races{"gather in communication and c in compute"});
}

TEST_CASE("what the host has waited for is ordered, and nothing else") {
  const std::vector<StreamCall> calls = {
      Op(kCommunication, "gather", {{1, true}}), Call(Kind::kRecord, kCommunication, 0),
      Op(kCommunication, "late", {{2, true}}), Call(Kind::kWait, kCompute, 0),
      Op(kCompute, "use", {{1, false}, {2, false}})};
  CHECK(FindRaces(calls) == Races{"late in communication and use in compute"});
  std::vector<StreamCall> synchronized = calls;
  synchronized[3] = Call(Kind::kSynchronize, kCompute);
  CHECK(FindRaces(synchronized).empty());
  // Nothing but the host waits for that event.
  CHECK(OrderingCalls(calls, 0).empty());
}

TEST_CASE("compute waits for its own collectives, and for another stream until its event") {
  StreamCall sum = Op(kCommunication, "sum", {});
  sum.collective_bytes = 5;
  StreamCall own_sum = sum;
  own_sum.stream = kCompute;
  const auto duration = [](const StreamCall& call) {
    return call.collective_bytes > 0 ? static_cast<double>(call.collective_bytes) : 2.0;
  };
  const StreamCall op = Op(kCompute, "a", {});
  const std::vector<StreamCall> calls = {op,
                                         Call(Kind::kRecord, kCompute, 0),
                                         Call(Kind::kOrder, kCommunication, 0),
                                         sum,  // from 2 to 7
                                         Call(Kind::kRecord, kCommunication, 1),
                                         op,  // to 4
                                         Call(Kind::kOrder, kCompute, 1),
                                         op,        // to 9
                                         own_sum};  // to 14
  CHECK(TimeOfCompute(calls, 0, duration).work == 6);
  CHECK(TimeOfCompute(calls, 0, duration).waiting == 3 + 5);
  CHECK(TimeOfCompute(calls, 5, duration).waiting == 5);
  std::vector<StreamCall> of_host = calls;
  of_host[6] = Call(Kind::kWait, kCompute, 1);
  CHECK(TimeOfCompute(of_host, 0, duration).waiting == 3 + 5);
  of_host[6] = Call(Kind::kSynchronize, kCompute);
  CHECK(TimeOfCompute(of_host, 0, duration).waiting == 3 + 5);
}

TEST_CASE("ops beside communication are those that do not wait for it") {
  CHECK(CountOpsBeside(kCommunication, {Op(kCompute, "a", {}), Op(kCommunication, "reduce", {}),
                                        Op(kCompute, "b", {}), Op(kCompute, "c", {}),
                                        Call(Kind::kRecord, kCommunication, 0),
                                        Call(Kind::kOrder, kCompute, 0), Op(kCompute, "d", {})}) ==
        2);
}

}  // namespace
}  // namespace convene::worker::testing
