// Groups of every transport, for the suites that run over all of them.
#pragma once

#include <string>

#include "worker_runtime/comm/collective_testing.h"
#include "worker_runtime/comm/loopback.h"

namespace convene::worker::testing {

enum class Transport { kLoopback };
inline constexpr Transport kTransports[] = {Transport::kLoopback};

inline const char* ToString(Transport transport) {
  (void)transport;
  return "loopback";
}

inline Group MakeGroup(Transport, int size, const std::string& name,
                       const LoopbackOptions& options = {}) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return LoopbackWorld(size, options).Group(ranks, name);
}

}  // namespace convene::worker::testing
