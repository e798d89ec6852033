#include "launcher/status_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::launcher {

std::string StatusText(const std::vector<rendezvous::JobView>& jobs) {
  if (jobs.empty()) return "no jobs\n";
  std::string text;
  for (const rendezvous::JobView& job : jobs) {
    absl::StrAppend(&text, "job ", job.job_id, ": ", job.phase, ", epoch ", job.epoch.value(), ", ",
                    job.nodes.size(), " nodes (--nnodes ", job.nodes_min, ":", job.nodes_max,
                    "), restarts ", job.restart_count, " of ", job.max_restarts, "\n  ", job.why,
                    "\n");
    size_t host_width = 4;
    for (const rendezvous::NodeView& node : job.nodes) {
      host_width = std::max(host_width, node.host.size());
    }
    if (!job.nodes.empty()) {
      absl::StrAppendFormat(&text, "  %5s  %-*s  %7s  %s\n", "group", host_width, "host", "workers",
                            "state");
    }
    for (const rendezvous::NodeView& node : job.nodes) {
      const std::string group = node.group_rank < 0 ? "-" : absl::StrCat(node.group_rank);
      absl::StrAppendFormat(&text, "  %5s  %-*s  %7d  %s\n", group, host_width, node.host,
                            node.local_world_size, node.state);
    }
  }
  return text;
}

}  // namespace convene::launcher
