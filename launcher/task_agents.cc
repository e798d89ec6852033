#include "launcher/task_agents.h"

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace convene::launcher {

bool MeansOneAgentANode(const RunFlags& flags, const rendezvous::Hello& hello,
                        const DetectedJob& detected) {
  int workers = 0;
  return detected.local_task.has_value() && detected.local_task->count > 1 &&
         detected.nodes.value_or(1) > 1 && hello.nodes_min == hello.nodes_max &&
         hello.nodes_max == *detected.nodes &&
         absl::SimpleAtoi(flags.nproc_per_node.value_or(""), &workers) &&
         workers == detected.local_task->count;
}

bool MeansOneAgentATask(const RunFlags& flags, const rendezvous::Hello& hello,
                        const DetectedJob& detected) {
  if (!detected.local_task.has_value() || !flags.nnodes.has_value()) return false;
  const int tasks = detected.local_task->count_of_all;
  const int nodes = detected.nodes.value_or(tasks);
  int workers = 0;
  return absl::SimpleAtoi(flags.nproc_per_node.value_or(""), &workers) && nodes < tasks &&
         int64_t{workers} * nodes != tasks && hello.nodes_min == hello.nodes_max &&
         hello.nodes_max == tasks;
}

std::string JobOfTask(const RunFlags& flags) {
  return absl::StrCat(flags.rdzv_id.value_or(""), " ", flags.rdzv_endpoint.value_or(""), " ",
                      flags.master_addr.value_or(""), " ", flags.master_port.value_or(0));
}

}  // namespace convene::launcher
