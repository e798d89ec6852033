#include "tools/base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"

namespace convene {
namespace {

constexpr int kHighestPort = 65535;

absl::Status Wrong(absl::string_view text, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" ", what, "; write HOST:PORT, such as node0:29400"));
}

// A name has no colon. The text behind a '%' names a network interface.
bool IsIPv6(absl::string_view host) {
  in6_addr address;
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1;
}

// The text's two parts; without a port when the text has none.
struct Parts {
  absl::string_view host;
  std::optional<absl::string_view> port;
};

absl::StatusOr<Parts> Split(absl::string_view text) {
  Parts parts;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t bracket = rest.find(']');
    if (bracket == absl::string_view::npos) return Wrong(text, "has a '[' without its ']'");
    parts.host = rest.substr(0, bracket);
    rest.remove_prefix(bracket + 1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    parts.host = text.substr(0, text.find(':'));
    rest.remove_prefix(parts.host.size());
  } else {  // a name without a port, or a bare IPv6 address
    parts.host = std::exchange(rest, "");
  }
  if (absl::ConsumePrefix(&rest, ":")) {
    parts.port = rest;
  } else if (!rest.empty()) {
    return Wrong(text, "has something behind its ']'");
  }
  return parts;
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, std::optional<int> default_port,
                                       int least_port) {
  CONVENE_ASSIGN_OR_RETURN(const Parts parts, Split(text));
  if (parts.host.empty()) return Wrong(text, "has no host");
  if (parts.host.find_first_of(" /[]") != absl::string_view::npos) {
    return Wrong(text, "has a character that no host has");
  }
  if (parts.host.find(':') != absl::string_view::npos && !IsIPv6(parts.host)) {
    return Wrong(text, "is no IPv6 address, which has its port behind brackets: [::1]:29400");
  }
  HostPort result;
  result.host = std::string(parts.host);
  if (!parts.port.has_value()) {
    if (!default_port.has_value()) return Wrong(text, "has no port");
    result.port = *default_port;
    return result;
  }
  if (!absl::SimpleAtoi(*parts.port, &result.port) || result.port < least_port ||
      result.port > kHighestPort) {
    return Wrong(
        text, absl::StrCat("has a port that is not a number in ", least_port, "..", kHighestPort));
  }
  return result;
}

std::string FormatHostPort(const std::string& host, int port) {
  if (host.find(':') != std::string::npos) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

}  // namespace convene
