// The table of --comm-log, over all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/profile/comm_log.h"

namespace convene::worker {

// PURE. One line an axis and operation, the longest first. `sheets`: by rank. "" where steps is 0.
// Ends with a newline.
//
//   communication of 20 steps  ranks calls/step  MB/call ms/step algbw GB/s busbw GB/s hidden ...
//   dp reduce_scatter              8        4.0    1.049    2.00      2.097      1.049  80.0% ...
//   pp recv                        4        8.0    0.033    0.30          -          -      - ...
//                                                                ... shortest, longest ms/step
//                                                                ... 1.80 rank 3, 2.31 rank 0
//
// MB and GB are powers of ten. ranks: how many have such calls; the figures behind it are those of
// the rank with the median time. ms/step is the sum over the calls, so it includes the wait for
// slower ranks: the rank with the shortest time came last. algbw = bytes / time, busbw = algbw
// BusFactor (collective.h). hidden: the part of the time during which the main stream was in an op
// that is no communication. A message's time is only the main stream's wait for it, which is not
// hidden; so it has no bandwidth.
std::string CommTable(const std::vector<CommSheet>& sheets, int64_t steps);

}  // namespace convene::worker
