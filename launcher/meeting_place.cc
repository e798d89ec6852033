#include "launcher/meeting_place.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace convene::launcher {
namespace {

using Kind = MeetingVerdict::Kind;

bool IsOwnName(const MeetingPlace& place) {
  return std::any_of(place.own_names.begin(), place.own_names.end(), [&](const std::string& name) {
    return absl::EqualsIgnoreCase(name, place.host);
  });
}

// The words that tell a person how to name a place that all nodes find.
std::string Remedy(const MeetingPlace& place) {
  return absl::StrCat(
      "write a name or an address by which others reach the first node's machine",
      place.own_names.empty() ? "" : absl::StrCat(" (this machine is ", place.own_names[0], ")"),
      "; in a batch script of Slurm that is $(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | "
      "head -n 1)");
}

MeetingVerdict JudgeLoopback(const MeetingPlace& place) {
  const bool is_apart =
      place.scheduled_nodes > 1 && place.agents_here < place.nodes && !place.only_dials;
  const std::string leads =
      IsThisMachineEverywhere(place.host)
          ? ""
          : absl::StrCat(" (", place.host, " is ", place.leads_to, " on this machine)");
  if (is_apart) {
    return {Kind::kRefusal,
            absl::StrCat(place.given, leads, ": on each of the ", place.scheduled_nodes,
                         " machines where the scheduler started this command that is the machine "
                         "itself, so that each node would meet only itself; ",
                         Remedy(place))};
  }
  return {
      Kind::kWarning,
      absl::StrCat(place.given, leads,
                   ": only nodes on this machine can meet there, and the job "
                   "has up to ",
                   place.nodes,
                   " nodes. Nodes on several machines would each meet only themselves: for them ",
                   Remedy(place))};
}

// Debian's 127.0.1.1: a machine that knows itself by a loopback address is found by the others
// under another one, and listens on all addresses.
MeetingVerdict JudgeOwnName(const MeetingPlace& place) {
  if (!IsThisMachineEverywhere(place.own_address)) {
    return {Kind::kNote, absl::StrCat(place.host, " is ", place.leads_to,
                                      " on this machine itself, by /etc/hosts: others are told ",
                                      place.own_address)};
  }
  return {Kind::kWarning,
          absl::StrCat(place.given, ": ", place.host, " is ", place.leads_to,
                       " on this machine itself, and the other nodes are told to reach it at ",
                       place.own_address,
                       ": nodes on other machines cannot. Bring up a network interface, or give "
                       "--local-addr ADDRESS")};
}

}  // namespace

bool IsThisMachineEverywhere(absl::string_view host) {
  return absl::EqualsIgnoreCase(host, "localhost") || absl::StartsWith(host, "127.") ||
         host == "::1" || host == "0.0.0.0" || host == "::";
}

MeetingVerdict JudgeMeetingPlace(const MeetingPlace& place) {
  if (place.nodes == 1) return {};
  if (!place.leads_to.empty()) {
    return IsOwnName(place) && !IsThisMachineEverywhere(place.host) ? JudgeOwnName(place)
                                                                    : JudgeLoopback(place);
  }
  if (!IsThisMachineEverywhere(place.local_addr)) return {};
  return {Kind::kWarning,
          absl::StrCat("--local-addr ", place.local_addr,
                       ": nodes on other machines are told to reach this one there, and that is "
                       "each machine itself. Leave the flag out, or write this machine's address")};
}

}  // namespace convene::launcher
