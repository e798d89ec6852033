#include "rendezvous/etcd/place.h"

#include <catch2/catch.hpp>

#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous::etcd {
namespace {

using Words = std::vector<std::string>;

TEST_CASE("a place has members, with a port each, and a prefix") {
  const auto place = ParsePlace("etcd://a,b:2400,[::1],10.0.0.1/team/1/");
  REQUIRE_OK(place);
  CHECK(place->members == Words{"a:2379", "b:2400", "[::1]:2379", "10.0.0.1:2379"});
  CHECK(place->prefix == "team/1");
  CHECK(place->leader() == "team/1/leader");
  CHECK(place->url() == "etcd://a:2379,b:2400,[::1]:2379,10.0.0.1:2379/team/1");
  CHECK(ParsePlace("etcd://a")->prefix == "convene");
  CHECK(ParsePlace("etcd://a/")->prefix == "convene");
}

TEST_CASE("a place that is none is refused with the right form") {
  for (const char* wrong :
       {"", "a:2379", "http://a", "etcd://", "etcd://a,", "etcd://a:0", "etcd:///p",
        "etcd://a:port", "etcd://a/white space", "etcd://a/\xC3\xA4"}) {
    INFO(wrong);
    CHECK_STATUS(ParsePlace(wrong), absl::StatusCode::kInvalidArgument, "etcd://HOST[:PORT]");
  }
  CHECK_STATUS(ParsePlace("etcd://a/" + std::string(201, 'p')), absl::StatusCode::kInvalidArgument,
               "longer than 200 bytes");
  CHECK_STATUS(ParsePlace("etcd://a,b,a:2379"), absl::StatusCode::kInvalidArgument,
               "it names a:2379 twice");
  std::string many = "etcd://a";
  for (int i = 0; i < 16; ++i) many += ",a" + std::to_string(i);
  CHECK_STATUS(ParsePlace(many), absl::StatusCode::kInvalidArgument, "more than 16 members");
}

TEST_CASE("keys of one lease stand in the order of their numbers") {
  CHECK(CountText(1, 9) < CountText(1, 10));
  CHECK(CountText(0x7FFF'0000'0000'0000, 255) < CountText(0x7FFF'0000'0000'0000, 256));
  CHECK(EndOfPrefix("jobs/") > "jobs/\xFF\xFF");
  CHECK(EndOfPrefix("jobs/") < "jobs2");
}

}  // namespace
}  // namespace convene::rendezvous::etcd
