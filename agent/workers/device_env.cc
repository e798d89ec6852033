#include "agent/workers/device_env.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {

absl::StatusOr<std::map<std::string, std::string>> OneVisibleDevice(
    const std::map<std::string, std::string>& environment, int local_rank) {
  const auto hip = environment.find(contract::kHipVisibleDevices);
  const bool is_hip = hip != environment.end() && !hip->second.empty();
  const auto list = is_hip ? hip : environment.find(contract::kCudaVisibleDevices);
  std::string device = absl::StrCat(local_rank);
  if (list != environment.end()) {
    const std::vector<std::string> devices = absl::StrSplit(list->second, ',');
    if (local_rank >= static_cast<int>(devices.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("--virtual-local-rank: ", list->first, "=", list->second,
                       " has no device for local rank ", local_rank,
                       "; lower --nproc-per-node or name more devices"));
    }
    device = std::string(absl::StripAsciiWhitespace(devices[local_rank]));
  }
  std::map<std::string, std::string> changes = {{contract::kCudaVisibleDevices, device}};
  if (is_hip) changes[contract::kHipVisibleDevices] = device;
  return changes;
}

}  // namespace convene::agent
