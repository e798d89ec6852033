// PURE. The hosts of a launch: read from a file or from a scheduler's variables, then chosen by
// --include, --exclude, --num-nodes and --num-gpus.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::launcher {

struct LaunchHost {
  std::string name;          // as ssh takes it: "n1", "user@n1"
  std::optional<int> slots;  // how many workers the list gives it; nullopt: it does not say
  std::vector<int> chosen;   // numbers of the devices that flags leave it, ascending; empty: all

  friend bool operator==(const LaunchHost&, const LaunchHost&) = default;
};

// `name` without "user@": how the host is called in lines and at the rendezvous.
std::string HostOf(const LaunchHost& host);

// One host a line: "n1 slots=8" as DeepSpeed's, "n1:8" and "n1 slots=8 max_slots=9" as MPI's, or
// "n1" alone. Repeated lines of a name alone count its slots, as PBS_NODEFILE and LSB_DJOB_HOSTFILE
// have it. Text from '#' on and blank lines do not count. The order stays. InvalidArgument, with
// `path` and the line's number, for anything else, and for a host that is there twice with slots.
absl::StatusOr<std::vector<LaunchHost>> ParseHostfile(const std::string& text,
                                                      const std::string& path);

// LSB_MCPU_HOSTS: "n1 4 n2 4". InvalidArgument for anything else.
absl::StatusOr<std::vector<LaunchHost>> ParseLsfHosts(const std::string& text);

struct HostChoice {
  std::string include;  // HOST[:SLOT[,SLOT]...][@HOST...]; "": all
  std::string exclude;  // the same; "": none
  std::optional<int> num_nodes;
  std::optional<int> num_gpus;
};

// The hosts that `choice` leaves, in their order. InvalidArgument for names and slots that are not
// in the list, for choices that contradict each other, and where nothing is left.
absl::StatusOr<std::vector<LaunchHost>> ChooseHosts(std::vector<LaunchHost> hosts,
                                                    const HostChoice& choice);

}  // namespace convene::launcher
