// The address of a node that perhaps only Slurm knows by its name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace convene::launcher {

// PURE. The NodeAddr and the NodeHostName of a line that `scontrol -o show node` printed, in this
// order, without those that are missing.
std::vector<std::string> AddressesOfNode(const std::string& line);

// A name or an address for the node `name` that this machine can resolve: `name` itself; else,
// where this is the node, its host name; else what `scontrol` tells, asked once, at a random moment
// within `spread` on the other nodes, so that a thousand do not ask at once. Takes at most 30 s and
// the spread. InvalidArgument, with what to do, where none resolves. Main thread.
absl::StatusOr<std::string> ResolvableSlurmHost(const std::string& name, bool is_this_node,
                                                absl::Duration spread);

}  // namespace convene::launcher
