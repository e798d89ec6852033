// PURE. Jobs as `convene status` prints them, and as the daemon's page shows them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// For each job a line, its reason, what its training tells, a table of its nodes (the first
// `most_nodes` of them), its stragglers, last failures and last event; "no jobs\n" for none. "-"
// stands for an unknown value. No text of others steers a terminal, here and below.
std::string StatusText(const std::vector<JobView>& jobs, size_t most_nodes);

// The changes in `after`: a line for each change of a job, of a node and of a straggler, without
// line ends; of a job's changed nodes at most the first 20.
std::vector<std::string> StatusChanges(const std::vector<JobView>& before,
                                       const std::vector<JobView>& after);

}  // namespace convene::rendezvous
