// PURE. Incidents as text for people.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::launcher {

// A line for each of the run's incidents, newest first. An older daemon keeps no reports: then a
// line for each of its last failures. A run without either has a line that says so.
std::string IncidentList(const rendezvous::JobView& job, absl::TimeZone zone);

// The whole report of one; `torch_lines`: ReadTorchDumps'.
std::string IncidentReport(const rendezvous::IncidentView& incident, absl::TimeZone zone,
                           const std::vector<std::string>& torch_lines = {});

}  // namespace convene::launcher
