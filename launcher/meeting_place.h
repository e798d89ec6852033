// PURE. Whether the nodes of a job can meet at its endpoint, judged by where the endpoint's name
// leads on this node. A name that leads to the loopback interface on each node makes each node meet
// itself.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::launcher {

// Whether a host, as it is written or as a numeric address, is on every machine that machine
// itself: "localhost", 127.x, ::1, 0.0.0.0, ::.
bool IsThisMachineEverywhere(absl::string_view host);

struct MeetingPlace {
  std::string given;                   // the user's own words: "--rdzv-endpoint localhost:29400"
  std::string host;                    // of the endpoint
  std::vector<std::string> own_names;  // of this machine, in this and in Slurm's sense
  int nodes = 1;                       // the most that may take part
  int scheduled_nodes = 1;             // the machines on which a scheduler started this command
  int agents_here = 1;                 // how many of the nodes the scheduler started here
  bool only_dials = false;             // --rdzv-conf is_host=0: an own port may be a tunnel's end
  std::string local_addr;              // --local-addr; "": not given

  // These two need the network.
  std::string leads_to;     // the loopback address that `host` is here; "": another address
  std::string own_address;  // by which the other nodes are told to reach this one
};

struct MeetingVerdict {
  enum class Kind { kFine, kNote, kWarning, kRefusal };
  Kind kind = Kind::kFine;
  std::string why;  // for the person, with what to write instead; "" for kFine
};

// Several nodes on one machine may meet at any of its addresses. So a place that only this machine
// finds is refused only where a scheduler started the job on several machines, and too few of its
// nodes here.
MeetingVerdict JudgeMeetingPlace(const MeetingPlace& place);

}  // namespace convene::launcher
