// A StatusReply as JSON, the same wherever it is printed: `/status` and `convene status --json`.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// One line without its end, by protobuf's rules for JSON (64-bit numbers are strings), the fields
// named as in proto/rendezvous.proto and present even when zero.
std::string StatusJson(const std::vector<JobView>& views);

// The same of one event, and of one incident with its report.
std::string EventJson(const EventView& event);
std::string IncidentJson(const IncidentView& incident);
// False for a text that is no incident's.
bool ReadIncidentJson(const std::string& json, IncidentView* incident);

}  // namespace convene::rendezvous
