// PURE. Jobs as `convene status` prints them.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/quorum/job_view.h"

namespace convene::launcher {

// A line for each job, then one for each of its nodes; "no jobs\n" for none.
std::string StatusText(const std::vector<rendezvous::JobView>& jobs);

}  // namespace convene::launcher
