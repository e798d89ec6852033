#include "rendezvous/client/places.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr int kPort = 29400;

std::string Crossed(const std::string& text) {
  const auto places = ParsePlaces(text, kPort);
  REQUIRE_OK(places);
  return FormatPlaces(*places);
}

TEST_CASE("one endpoint or several, each with its own port or the default one") {
  CHECK(Crossed("node0") == "node0:29400");
  CHECK(Crossed("a:1,b,[::1]:2") == "a:1,b:29400,[::1]:2");
  CHECK(Crossed("a, b:7") == "a:29400,b:7");
  CHECK(ParsePlaces("any:0", kPort, 0)->front().port == 0);
}

TEST_CASE("what is wrong with a list is named") {
  const auto status = [](const std::string& text) { return ParsePlaces(text, kPort, 0).status(); };
  constexpr auto kWrong = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(status(""), kWrong, "has no host");
  CHECK_STATUS(status("a,"), kWrong, "\"\" has no host");
  CHECK_STATUS(status("a,,b"), kWrong, "\"\" has no host");
  CHECK_STATUS(status("a,b:x"), kWrong, "\"b:x\" has a port that is not a number in 1..65535");
  CHECK_STATUS(status("a,b:0"), kWrong, "\"b:0\" has a port");
  CHECK_STATUS(status("a,b,a:29400"), kWrong, "has a:29400 twice");
  std::string many = "a0";
  for (size_t i = 1; i <= kMostPlaces; ++i) absl::StrAppend(&many, ",a", i);
  CHECK_STATUS(status(many), kWrong, "17 endpoints are too many: write at most 16");
  CHECK_STATUS(status(" a"), kWrong, "has a character that no host has");
}

TEST_CASE("a person hears of each endpoint why it did not answer") {
  CHECK(NoneAnswers({"a:1", "b:2"}, {"refused", "no answer"}) ==
        "none of 2 endpoints answers as the rendezvous: a:1 (refused), b:2 (no answer)");
}

}  // namespace
}  // namespace convene::rendezvous
