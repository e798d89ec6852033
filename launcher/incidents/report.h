// PURE. Incidents as text for people.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::launcher {

// A line for each, newest first, or that there are none.
std::string IncidentList(const std::vector<rendezvous::IncidentView>& incidents,
                         absl::TimeZone zone);

// The whole report of one.
std::string IncidentReport(const rendezvous::IncidentView& incident, absl::TimeZone zone);

}  // namespace convene::launcher
