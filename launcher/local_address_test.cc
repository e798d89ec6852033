#include "launcher/local_address.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

// Nothing waits for it, however busy the machine is.
constexpr absl::Duration kTimeout = absl::Seconds(20);

TEST_CASE("loopback by name or number is here and is our own address") {
  CHECK(LocateRendezvous({"localhost"}, kTimeout)->is_here);
  CHECK(LocateRendezvous({"localhost"}, kTimeout)->own_address == "127.0.0.1");
  CHECK(LocateRendezvous({"127.0.0.1"}, kTimeout)->is_here);
  CHECK(LocateRendezvous({"127.0.0.2"}, kTimeout)->own_address == "127.0.0.2");
}

TEST_CASE("a machine whose loopback is up reaches itself") { CHECK_OK(CheckLoopback()); }

TEST_CASE("a documentation address is not this machine") {
  const auto location = LocateRendezvous({"192.0.2.1"}, kTimeout);
  // A sandbox without a route may say so; what it must not say is "here".
  if (location.ok()) {
    CHECK_FALSE(location->is_here);
    CHECK_FALSE(location->own_address.empty());
  } else {
    CHECK_STATUS(location, absl::StatusCode::kUnavailable, "no route to 192.0.2.1");
  }
}

TEST_CASE("of several hosts the first one that is known tells where this machine is") {
  const std::vector<std::string> hosts = {"no such host", "127.0.0.2", "127.0.0.1"};
  const auto location = LocateRendezvous(hosts, kTimeout);
  REQUIRE_OK(location);
  CHECK(location->host == "127.0.0.2");
  CHECK(location->is_here);
}

TEST_CASE("a name that cannot exist is an error within the timeout") {
  CHECK_STATUS(LocateRendezvous({"no such host"}, absl::Milliseconds(200)),
               absl::StatusCode::kInvalidArgument, "no such host");
}

}  // namespace
}  // namespace convene::launcher
