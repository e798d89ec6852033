#include "worker_runtime/comm/nccl/recovery.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace convene::worker {
namespace {

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

NcclRecoveryDecision DecideNcclRecovery(const NcclFeatures& features, const NcclChange& change) {
  const std::string nccl = absl::StrCat("NCCL ", NcclVersionText(features.version_code));
  const bool well = change.health == NcclHealth::kWell;
  if (well && change.lost.empty() && change.joined.empty()) {
    return {NcclRecovery::kKeep, "nobody left, nobody came, and all is well"};
  }
  if (change.health == NcclHealth::kContextLost) {
    return {NcclRecovery::kNewProcess,
            "the GPU's context is lost: only a new process gets another"};
  }
  if (!features.restart_in_process) {
    return {NcclRecovery::kNewProcess,
            absl::StrCat(nccl, features.usable ? " does not restart well within a process"
                                               : " is too old for non-blocking communicators")};
  }
  if (!change.lost.empty() && !change.joined.empty()) {
    return {NcclRecovery::kNewCommunicators,
            absl::StrCat(Ranks(change.lost), " lost and ", Ranks(change.joined),
                         " new: one step instead of two")};
  }
  if (!change.lost.empty()) {
    if (!features.shrink) {
      return {NcclRecovery::kNewCommunicators, absl::StrCat(nccl, " cannot shrink")};
    }
    if (!well && !features.revoke) {
      return {NcclRecovery::kNewCommunicators,
              absl::StrCat(nccl, " can shrink, but not revoke what still runs")};
    }
    return {NcclRecovery::kShrink,
            absl::StrCat(nccl, well ? " can shrink: " : " can revoke and shrink: ",
                         change.size - static_cast<int>(change.lost.size()), " of ", change.size,
                         " ranks go on without ", Ranks(change.lost))};
  }
  if (!well) {
    return {NcclRecovery::kNewCommunicators, "the communicators have ended"};
  }
  if (!features.grow) {
    return {NcclRecovery::kNewCommunicators, absl::StrCat(nccl, " cannot grow")};
  }
  return {NcclRecovery::kGrow, absl::StrCat(nccl, " can grow: ", change.size, " ranks become ",
                                            change.size + static_cast<int>(change.joined.size()))};
}

std::vector<int> Survivors(const std::vector<int>& members, absl::Span<const int> lost) {
  std::vector<int> left;
  for (size_t place = 0; place < members.size(); ++place) {
    if (std::find(lost.begin(), lost.end(), static_cast<int>(place)) == lost.end()) {
      left.push_back(members[place]);
    }
  }
  return left;
}

}  // namespace convene::worker
