// PURE. Which of a worker's streams go where: torchrun's --redirects, --tee, --local-ranks-filter
// and
// --duplicate-{stdout,stderr}-filters, to the letter.
#pragma once

#include "agent/options.h"
#include "agent/process/console.h"

namespace convene::agent {

//   redirected | teed | shown ranks have it | others
//   no         | no   | console             | nowhere
//   yes        | no   | file                | file
//   either     | yes  | file and console    | file
struct StreamPlan {
  bool on_console = true;
  bool has_prefix = true;
  bool in_file = false;
  bool filtered = false;  // lines are also looked at for the duplicate filters: teed and shown
};

StreamPlan PlanStream(const LogOptions& options, OutputStream stream, int local_rank);

// Whether any worker has a log file.
bool WritesFiles(const LogOptions& options, int local_world_size);

}  // namespace convene::agent
