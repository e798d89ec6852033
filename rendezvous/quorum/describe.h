// PURE. Makes the view of a job that `convene status` shows.
#pragma once

#include <string>

#include "rendezvous/quorum/decide.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/job_view.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// `why`: the last decision's reason.
JobView Describe(MonotonicTime now, const std::string& job_id, const JobState& state,
                 const JobPolicy& policy, const std::string& why);

}  // namespace convene::rendezvous
