#include "rendezvous/lock/expiry.h"

#include <catch2/catch.hpp>

namespace convene::rendezvous {
namespace {

const absl::Time kEnd = absl::FromCivil(absl::CivilMinute(2026, 12, 9, 3, 0), absl::UTCTimeZone());

ExpiryNews NewsBefore(absl::Duration left) { return NewsOfExpiry("/c.pem", kEnd, kEnd - left); }

TEST_CASE("a certificate's end is told from fourteen days before, with the date, once a day") {
  CHECK(NewsBefore(absl::Hours(100 * 24)).warning.empty());
  CHECK(NewsBefore(absl::Hours(100 * 24)).next_look == absl::Hours(24));
  CHECK(NewsBefore(absl::Hours(14 * 24 + 5)).warning.empty());
  CHECK(NewsBefore(absl::Hours(14 * 24 + 5)).next_look == absl::Hours(5));
  const ExpiryNews first = NewsBefore(absl::Hours(14 * 24));
  CHECK_THAT(first.warning, Catch::Contains("the certificate in /c.pem, or its CA's, ends on "
                                            "2026-12-09 03:00 UTC, in 14 days: renew it"));
  CHECK(first.next_look == absl::Hours(24));
  CHECK_THAT(NewsBefore(absl::Hours(47)).warning, Catch::Contains("in a day:"));
  CHECK_THAT(NewsBefore(absl::Hours(23)).warning, Catch::Contains("in less than a day:"));
}

TEST_CASE("a certificate that has ended is told of once a day until it is renewed") {
  const ExpiryNews news = NewsBefore(-absl::Hours(1));
  CHECK_THAT(news.warning, Catch::Contains("ended on 2026-12-09 03:00 UTC"));
  CHECK(news.next_look == absl::Hours(24));
}

TEST_CASE("of keys that have no end there is nothing to say") {
  const ExpiryNews news = NewsOfExpiry("", absl::InfiniteFuture(), kEnd);
  CHECK(news.warning.empty());
  CHECK(news.next_look == absl::Hours(24));
}

}  // namespace
}  // namespace convene::rendezvous
