#include "rendezvous/net/service_records.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

std::string Two(int number) {
  return {static_cast<char>(number >> 8), static_cast<char>(number & 0xff)};
}

std::string Name(const std::string& host) {
  std::string bytes;
  for (const absl::string_view label : absl::StrSplit(host, '.', absl::SkipEmpty())) {
    absl::StrAppend(&bytes, std::string(1, static_cast<char>(label.size())), label);
  }
  return bytes + '\0';
}

std::string Srv(int priority, int weight, int port, const std::string& host) {
  const std::string data = absl::StrCat(Two(priority), Two(weight), Two(port), Name(host));
  return absl::StrCat("\xc0\x0c", Two(33), Two(1), Two(0), Two(60), Two(data.size()), data);
}

// A DNS message that answers the question for "_convene._tcp.x".
std::string Answer(const std::vector<std::string>& records) {
  std::string all = absl::StrCat(Two(1), Two(0x8180), Two(1), Two(records.size()), Two(0), Two(0),
                                 Name("_convene._tcp.x"), Two(33), Two(1));
  for (const std::string& record : records) all += record;
  return all;
}

std::string Places(const std::string& message) {
  const auto places = ParseServiceAnswer(message);
  if (!places.ok()) return std::string(places.status().message());
  std::string text;
  for (const HostPort& place : *places) absl::StrAppend(&text, place.host, ":", place.port, " ");
  return text;
}

TEST_CASE("records come in the order of their priorities and weights, however they arrive") {
  const std::string a = Srv(1, 5, 29400, "a.x");
  const std::string b = Srv(1, 9, 29401, "b.x");
  const std::string c = Srv(0, 0, 29402, "c.x");
  CHECK(Places(Answer({a, b, c})) == "c.x:29402 b.x:29401 a.x:29400 ");
  CHECK(Places(Answer({c, b, a, b})) == "c.x:29402 b.x:29401 a.x:29400 ");
}

TEST_CASE("of many records the first ones by priority are taken") {
  std::vector<std::string> records;
  for (int i = 40; i > 0; --i) records.push_back(Srv(i, 0, i, "h.x"));
  const auto places = ParseServiceAnswer(Answer(records));
  REQUIRE_OK(places);
  CHECK(places->size() == kMostServiceRecords);
  CHECK(places->front().port == 1);
}

TEST_CASE("records without a usable host are no places") {
  CHECK_STATUS(ParseServiceAnswer(Answer({Srv(0, 0, 29400, ".")})), absl::StatusCode::kNotFound,
               "");
  CHECK_STATUS(ParseServiceAnswer(Answer({})), absl::StatusCode::kNotFound, "");
  CHECK(Places(Answer({Srv(0, 0, 1, "a b.x"), Srv(0, 0, 2, "\x1b[31m.x"), Srv(0, 0, 0, "z.x"),
                       Srv(0, 0, 3, "good.x")})) == "good.x:3 ");
}

TEST_CASE(
    "an answer that ends anywhere is refused, or has fewer places, and nothing is read behind it") {
  const std::string whole = Answer({Srv(1, 5, 29400, "a.x"), Srv(1, 9, 29401, "b.x")});
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string cut = whole.substr(0, length);
    CHECK_FALSE(ParseServiceAnswer(cut).ok());
  }
  CHECK_FALSE(ParseServiceAnswer(std::string(70000, '\xff')).ok());
}

TEST_CASE("an endpoint that is no service stays; a name that can be none is refused") {
  for (const char* name : {"a:1,b", "srv:29400", "srv:", "srv"}) {
    CHECK(ResolveService(name).value() == name);
  }
  for (const char* name : {"srv:_a b", "srv:_a,b"}) {
    CHECK_STATUS(ResolveService(name), absl::StatusCode::kInvalidArgument, "srv:_convene._tcp");
  }
}

}  // namespace
}  // namespace convene::rendezvous
