#include "tools/base/host_port.h"

#include <tuple>
#include <utility>

#include "tools/base/testing/status_testing.h"

namespace convene {
namespace {

TEST_CASE("a host and a port come apart and together, whatever the kind of host") {
  for (const auto& [text, host, port] :
       {std::tuple("h:7", "h", 7), std::tuple("10.0.0.1:65535", "10.0.0.1", 65535),
        std::tuple("[fe80::1]:7", "fe80::1", 7), std::tuple("[::]:1", "::", 1)}) {
    INFO(text);
    const auto parsed = ParseHostPort(text, std::nullopt);
    REQUIRE_OK(parsed);
    CHECK(*parsed == HostPort{host, port});
    CHECK(FormatHostPort(parsed->host, parsed->port) == text);
  }
}

TEST_CASE("a port that is left out is the service's own") {
  for (const auto& [text, host] :
       {std::pair("h", "h"), std::pair("fe80::1", "fe80::1"), std::pair("[fe80::1]", "fe80::1"),
        std::pair("::1", "::1"), std::pair("fe80::1%eth0", "fe80::1%eth0")}) {
    INFO(text);
    CHECK(ParseHostPort(text, 29400).value() == HostPort{host, 29400});
    CHECK_STATUS(ParseHostPort(text, std::nullopt), absl::StatusCode::kInvalidArgument,
                 "has no port");
  }
}

TEST_CASE("what is no host and port is refused with what is wrong") {
  for (const auto& [text, wrong] :
       {std::pair("", "has no host"), std::pair(":7", "has no host"),
        std::pair("[]:7", "has no host"), std::pair("[::1", "without its ']'"),
        std::pair("[::1]7", "behind its ']'"), std::pair("h:", "not a number in 1..65535"),
        std::pair("h:port", "not a number in 1..65535"),
        std::pair("h:65536", "not a number in 1..65535"),
        std::pair("h:0", "not a number in 1..65535"), std::pair("h:-1", "not a number in 1..65535"),
        std::pair("::1:29400", "no IPv6 address, which has its port behind brackets"),
        std::pair("a:b:7", "no IPv6 address"), std::pair("http://h:80", "no host has"),
        std::pair("a b:7", "no host has")}) {
    INFO(text);
    CHECK_STATUS(ParseHostPort(text, 29400), absl::StatusCode::kInvalidArgument, wrong);
  }
  CHECK(ParseHostPort("h:0", std::nullopt, 0).value().port == 0);
}

}  // namespace
}  // namespace convene
