// PURE. The state of jobs as a page for people.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// The text of `convene status` as HTML without scripts that the browser asks for again every 5 s.
// Shows at most 500 nodes a job.
std::string StatusPage(const std::vector<JobView>& views);

}  // namespace convene::rendezvous
