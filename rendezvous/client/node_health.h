// A client of the health service that an operator may run on a node (proto/node_health.proto).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace convene::rendezvous {

struct NodeHealth {
  bool success = false;  // the service's script ended with 0
  int exit_code = 0;     // of the script
  std::string output;    // what the script printed: JSON
  std::string error;     // why the script did not run
};

// Asks the service at `socket`, gRPC's name of a Unix socket ("unix:/run/nvhcd.sock"); blocks for
// at most `timeout`. Unavailable: no service is there. DeadlineExceeded: it did not answer in time.
// Other codes are the service's own.
absl::StatusOr<NodeHealth> AskNodeHealth(const std::string& socket, absl::Duration timeout);

}  // namespace convene::rendezvous
