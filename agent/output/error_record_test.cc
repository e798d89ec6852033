#include "agent/output/error_record.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

TEST_CASE("the record that torch.distributed.elastic writes of an exception is read") {
  const auto record = ParseErrorRecord(
      R"({"message": {"message": "RuntimeError: no\nkernel image\n\nis available\nfor the device",)"
      R"( "extraInfo": {"py_callstack": "Traceback", "timestamp": "1763757313"}}})");
  REQUIRE(record.has_value());
  CHECK(record->lines ==
        std::vector<std::string>{"RuntimeError: no", "kernel image", "is available"});
  CHECK(record->time == absl::FromUnixSeconds(1763757313));
}

TEST_CASE("so is the plain form, with a number or without a time") {
  const auto record = ParseErrorRecord(R"({"message": "out of eggs", "timestamp": 12.5})");
  REQUIRE(record.has_value());
  CHECK(record->lines == std::vector<std::string>{"out of eggs"});
  CHECK(record->time == absl::FromUnixMillis(12500));
  const auto timeless = ParseErrorRecord(R"({"message": "out of eggs"})");
  REQUIRE(timeless.has_value());
  CHECK(timeless->time == absl::InfiniteFuture());
}

TEST_CASE("without a message the traceback's last line stands for it") {
  const auto record = ParseErrorRecord(
      R"({"message": {"extraInfo": {"py_callstack": "Traceback:\n  x()\nKeyError: 3\n"}}})");
  REQUIRE(record.has_value());
  CHECK(record->lines == std::vector<std::string>{"KeyError: 3"});
}

TEST_CASE("what is no record is none") {
  CHECK_FALSE(ParseErrorRecord(""));
  CHECK_FALSE(ParseErrorRecord("{\"message\": \"cut o"));
  CHECK_FALSE(ParseErrorRecord("[1, 2]"));
  CHECK_FALSE(ParseErrorRecord("{}"));
  CHECK_FALSE(ParseErrorRecord(R"({"message": 3})"));
  CHECK_FALSE(ParseErrorRecord(R"({"message": {"extraInfo": 7}})"));
  CHECK_FALSE(ParseErrorRecord(R"({"message": "\n \n"})"));
  CHECK_FALSE(ParseErrorRecord(std::string(100'000, '[')));
  CHECK_FALSE(ParseErrorRecord(std::string(100'000, '{')));
}

TEST_CASE("a message of any length and bytes fits the report") {
  const auto record = ParseErrorRecord("{\"message\": \"" + std::string(5000, 'x') + "\"}");
  REQUIRE(record.has_value());
  CHECK(record->lines[0].size() == 500);
}

TEST_CASE("the exit code is added where torchrun adds it, and the rest stays") {
  const std::string with =
      WithErrorCode(R"({"message": {"message": "boom", "extraInfo": {"timestamp": "7"}}})", -9);
  CHECK_THAT(with, Catch::Contains("\"errorCode\":-9") && Catch::Contains("\"boom\""));
  CHECK(ParseErrorRecord(with)->time == absl::FromUnixSeconds(7));
  CHECK(WithErrorCode(R"({"message": "plain"})", 3) == R"({"message": "plain"})");
  CHECK(WithErrorCode("nonsense", 3) == "nonsense");
}

}  // namespace
}  // namespace convene::agent
