// PURE. The state of jobs as the page asks for it: JSON without what the page can work out, so that
// a job of 1,000 nodes stays small. It is the page's own, and changes with it; programs read
// /status.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/quorum/job_view.h"
#include "rendezvous/web/curves.h"
#include "rendezvous/web/log_feed.h"

namespace convene::rendezvous {

// A page shows at most so many nodes of a job, the first ones.
inline constexpr size_t kMostPageNodes = 4096;

// /api/jobs: for each job a few words and numbers.
//   {"jobs":[{"id":..,"phase":..,"epoch":..,"why":..,"nodes":[in the epoch, all, min, max],
//    "restarts":[spent, most],"sample":[step, steps/s, loss, tokens/s],"mfu":..,"goodput":..,
//    "stragglers":..,"failure":the newest one or ""}]}
// A number that is not told is null.
std::string JobsJson(const std::vector<JobView>& views, const CurvesOf& curves_of);

// /api/job: all of one job. As above, and
//   "node_rows":[[host, agent id, group rank, state, why, workers, first rank, seconds since it
//                 was heard or 0 below 3 s and half its lease, step, steps/s, phase], ..]
//                first rank -1: unknown
//   "rank_rows":[[node's index, rank, step, steps/s, phase, compute ms, wait ms, data ms,
//                 checkpoint ms, loss, tokens/s, bytes, peak bytes], ..]
//   "failures":[[epoch, what, seconds ago], ..]      "events":[[number, us, kind, text, epoch], ..]
//   "stragglers_now":[[kind, rank, host, slower by, why, seconds], ..]
//   "incidents":[[number, epoch, verdict, cause, us], ..]
//   "curve":[[seconds, step, loss, tokens/s, steps/s], ..]
std::string JobJson(const JobView& view, const CurvesOf& curves_of);

// /api/logs.
//   {"feed":..,"next":..,"skipped":..,"lost":..,"more":..,"over":..,
//    "lines":[[us, rank, host, is stderr, text], ..]}
std::string LogsJson(const FeedAnswer& answer);

}  // namespace convene::rendezvous
