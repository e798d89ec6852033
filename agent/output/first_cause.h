// PURE. Finds, among workers that ended together, the worker whose end caused the others'.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "agent/core/machine.h"
#include "agent/output/error_record.h"

namespace convene::agent {

// Brings the first cause to the front of the failures: the worker that recorded an error earliest
// (torchrun's rule; equal seconds are told apart by the files' times), then workers that recorded
// none, in the order of their ends, then workers in session (`in_session`: local ranks) that only
// ask to be started again (75). Workers that succeeded stand before all of them.
//
// Fills error_lines with a worker's own record; for the first failure also with the fact that a
// worker that has not ended yet recorded an error before it.
void OrderByCause(const std::map<int, ErrorRecord>& records, const std::set<int>& in_session,
                  std::vector<WorkerExited>& ended);

}  // namespace convene::agent
