// PURE. A job as `convene status` shows it, from what the daemon knows of it.
//
//   NodeView::state   its why, where that is not plain
//   joining           claims the node rank of another one
//   ready             how and when it gets in
//   running           "stopping" while the epoch ends
//   succeeded
//   spare             replaces a lost member
//   waiting           no seat; when it is sent away
//   cooling down      why, and for how long still
#pragma once

#include <string>

#include "rendezvous/quorum/decide.h"
#include "rendezvous/quorum/job_state.h"
#include "rendezvous/quorum/job_view.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// `why`: the last decision's.
JobView Describe(MonotonicTime now, const std::string& job_id, const JobState& state,
                 const JobPolicy& policy, const std::string& why);

}  // namespace convene::rendezvous
