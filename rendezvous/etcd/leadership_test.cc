#include "rendezvous/etcd/leadership.h"

#include <catch2/catch.hpp>

#include "rendezvous/etcd/testing/memory_etcd.h"

namespace convene::rendezvous::etcd {
namespace {

const Place kPlace = {{"a:2379"}, "p"};

MonotonicTime At(double seconds) { return MonotonicTime::FromEpoch(absl::Seconds(seconds)); }

// At `seconds` it leads, in term 5 by lease 7 of 8 s.
Leadership LeadingAt(double seconds) {
  Leadership leadership(At(seconds));
  leadership.Looked(At(seconds), false);
  CHECK(leadership.NextDeed(At(seconds)).deed == Deed::kGrant);
  leadership.Granted(At(seconds), 7, absl::Seconds(8));
  CHECK(leadership.NextDeed(At(seconds)).deed == Deed::kCampaign);
  leadership.Campaigned(At(seconds), 5);
  return leadership;
}

TEST_CASE("a candidate looks until there is no leader") {
  Leadership leadership(At(0));
  CHECK(leadership.NextDeed(At(0)).deed == Deed::kLook);
  leadership.Looked(At(1), true);
  const Leadership::Next next = leadership.NextDeed(At(1));
  CHECK(next.deed == Deed::kLook);
  CHECK(next.at == At(1.2));
  leadership.Looked(At(2), false);
  CHECK(leadership.NextDeed(At(2)).deed == Deed::kGrant);
  leadership.Failed(At(3));  // etcd is full
  CHECK(leadership.NextDeed(At(3)).deed == Deed::kLook);
  CHECK(leadership.NextDeed(At(3)).at == At(3.1));
  CHECK(leadership.lease() == 0);
}

TEST_CASE("a tenure counts from before the request that was answered, and ends a margin early") {
  Leadership leadership = LeadingAt(10);
  CHECK(leadership.term() == 5);
  CHECK(leadership.until() == At(17));  // 8 s less an eighth
  CHECK(leadership.NextDeed(At(10)).deed == Deed::kKeepAlive);
  CHECK(leadership.NextDeed(At(10)).give_up == At(13));
  leadership.KeptAlive(At(12), absl::Seconds(8));
  CHECK(leadership.until() == At(19));
  CHECK(leadership.NextDeed(At(12.5)).at == At(13));  // eight times a TTL
  leadership.Failed(At(15));
  CHECK(leadership.NextDeed(At(15)).at == At(15.1));
  CHECK(leadership.NextDeed(At(18.9)).deed == Deed::kKeepAlive);
  CHECK(leadership.NextDeed(At(19)).deed == Deed::kOver);
}

TEST_CASE("a tenure is not made shorter, and a candidacy does not begin twice") {
  Leadership leadership = LeadingAt(10);
  leadership.KeptAlive(At(12), absl::Seconds(4));  // etcd gives less
  CHECK(leadership.until() == At(17));
  leadership.KeptAlive(At(13), absl::ZeroDuration());
  CHECK(leadership.NextDeed(At(13)).deed == Deed::kOver);
}

TEST_CASE("a campaign that is lost, or has no answer in time, begins anew") {
  Leadership leadership(At(0));
  leadership.Looked(At(0), false);
  leadership.Granted(At(0), 7, absl::Seconds(8));
  SECTION("lost") {
    leadership.Campaigned(At(1), std::nullopt);
    CHECK(leadership.NextDeed(At(1)).deed == Deed::kLook);
  }
  SECTION("no answer") {
    leadership.Failed(At(3));
    CHECK(leadership.NextDeed(At(3)).deed == Deed::kCampaign);
    CHECK(leadership.NextDeed(At(3)).give_up == At(6.1));
    CHECK(leadership.NextDeed(At(6)).give_up == At(7));
    CHECK(leadership.NextDeed(At(7)).deed == Deed::kLook);
  }
  CHECK(leadership.lease() == 0);
  CHECK(leadership.term() == 0);
}

TEST_CASE(
    "one candidate wins, knows it from any copy of its request, and the next term is higher") {
  MemoryEtcd etcd;
  const auto first = TermOf(etcd.Txn(CampaignRequest(kPlace, 7, "one")), 7);
  REQUIRE(first.has_value());
  CHECK(TermOf(etcd.Txn(CampaignRequest(kPlace, 7, "one")), 7) == first);
  CHECK(TermOf(etcd.Txn(CampaignRequest(kPlace, 8, "two")), 8) == std::nullopt);
  etcd.Expire(7);
  const auto second = TermOf(etcd.Txn(CampaignRequest(kPlace, 8, "two")), 8);
  REQUIRE(second.has_value());
  CHECK(*second > *first);
}

}  // namespace
}  // namespace convene::rendezvous::etcd
