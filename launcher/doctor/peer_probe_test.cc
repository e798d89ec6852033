#include "launcher/doctor/peer_probe.h"

#include <cmath>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using convene::doctor::v1::NodeReport;
using convene::doctor::v1::PeerProbe;

NodeReport Here(int port) {
  NodeReport report;
  report.set_host("localhost");
  report.set_address("127.0.0.1");
  report.set_port(port);
  return report;
}

TEST_CASE("a node answers with its clock, one prober after another") {
  const auto server = ProbeServer::Start();
  REQUIRE_OK(server);
  for (int i = 0; i < 3; ++i) {
    const NodeReport here = Here((*server)->port());
    PeerProbe probe = ProbePeer(7, here, absl::Seconds(5));
    LookUpNames(here, absl::Seconds(5), &probe);
    CHECK(probe.node() == 7);
    CHECK(probe.name_error().empty());
    CHECK(probe.connect_error().empty());
    CHECK(probe.round_trip_seconds() > 0);
    CHECK(probe.named_addresses_size() > 0);
    CHECK(probe.address_name().find("localhost") != std::string::npos);
    // The same clock.
    CHECK(std::abs(probe.clock_ahead_seconds()) <= probe.round_trip_seconds());
  }
}

TEST_CASE("a port that nobody serves, and a name that nobody knows, are words") {
  int port = 0;
  {
    const auto server = ProbeServer::Start();
    REQUIRE_OK(server);
    port = (*server)->port();
  }
  NodeReport report = Here(port);
  report.set_host("no-such-host.invalid");
  report.set_address("127.45.67.89");  // of the loopback, without a name
  PeerProbe probe = ProbePeer(1, report, absl::Seconds(5));
  LookUpNames(report, absl::Seconds(5), &probe);
  CHECK(probe.connect_error().find("onnection refused") != std::string::npos);
  CHECK(probe.name_error().find("no-such-host.invalid") != std::string::npos);
  CHECK(probe.round_trip_seconds() == 0);
  CHECK(probe.named_addresses_size() == 0);
  CHECK(probe.address_name().empty());
}

}  // namespace
}  // namespace convene::launcher
