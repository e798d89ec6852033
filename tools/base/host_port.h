// PURE. "host:port" and back: the one place that knows about IPv6's brackets.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// "host:port", "[v6]:port"; with a `default_port` also "host", "v6" and "[v6]". InvalidArgument,
// with the text and what is wrong with it, for anything else and for a port that is not in
// `least_port`..65535 (0 is "any free one", for listeners).
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, std::optional<int> default_port,
                                       int least_port = 1);

// The reverse: "host:port", "[v6]:port".
std::string FormatHostPort(const std::string& host, int port);

}  // namespace convene
