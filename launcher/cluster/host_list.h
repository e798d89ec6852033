// PURE. Slurm's short form of a list of hosts: "node[003-007,9],login".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::launcher {

inline constexpr size_t kMostHosts = 65536;  // in one list, as in Slurm

// Every host of the list, in its order. A group in brackets holds numbers and ascending ranges;
// each number is as wide as the lower end of its range is written. Several groups in a name
// multiply, the last one varies fastest, and text may follow it ("n[01-12]-ib0", which Slurm itself
// refuses). InvalidArgument where it is no such list, where it has more than kMostHosts hosts, and
// where a host has more than 255 bytes.
absl::StatusOr<std::vector<std::string>> ExpandHostList(const std::string& list);

}  // namespace convene::launcher
