#include "worker_runtime/report/number_text.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace convene::worker {
namespace {

TEST_CASE("counts keep two or three digits and a unit") {
  CHECK(HumanCount(0) == "0");
  CHECK(HumanCount(3) == "3");
  CHECK(HumanCount(3.25) == "3.2");
  CHECK(HumanCount(42.3) == "42");
  CHECK(HumanCount(999.4) == "999");
  CHECK(HumanCount(999.6) == "1.0k");
  CHECK(HumanCount(41'234) == "41.2k");
  CHECK(HumanCount(412'345) == "412k");
  CHECK(HumanCount(999'900) == "1.0M");
  CHECK(HumanCount(1'310'720) == "1.3M");
  CHECK(HumanCount(70'553'706'496) == "70.6B");
  CHECK(HumanCount(2e15) == "2000T");
  CHECK(HumanCount(-1500) == "-1.5k");
  CHECK(HumanCount(NAN) == "nan");
}

TEST_CASE("thousands are set apart") {
  CHECK(WithThousands(0) == "0");
  CHECK(WithThousands(999) == "999");
  CHECK(WithThousands(1000) == "1,000");
  CHECK(WithThousands(8'030'261'248) == "8,030,261,248");
  CHECK(WithThousands(-123456) == "-123,456");
  CHECK(WithThousands(-123) == "-123");
}

TEST_CASE("durations grow from minutes to days") {
  CHECK(HumanDuration(absl::Seconds(42)) == "0:42");
  CHECK(HumanDuration(absl::Milliseconds(59'700)) == "1:00");
  CHECK(HumanDuration(absl::Seconds(725)) == "12:05");
  CHECK(HumanDuration(absl::Seconds(3 * 3600 + 4 * 60 + 5)) == "3:04:05");
  CHECK(HumanDuration(absl::Hours(51)) == "2d 3h");
  CHECK(HumanDuration(absl::InfiniteDuration()) == "-:--");
  CHECK(HumanDuration(absl::Seconds(-1)) == "-:--");
}

}  // namespace
}  // namespace convene::worker
