#include "worker_runtime/comm/nccl/limits.h"

#include <algorithm>
#include <bit>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace convene::worker {

std::string NcclVersionText(int version_code) {
  // Up to NCCL 2.8 the code had one digit less (NCCL_VERSION in nccl.h).
  const int major_unit = version_code >= 10000 ? 10000 : 1000;
  return absl::StrCat(version_code / major_unit, ".", version_code % major_unit / 100, ".",
                      version_code % 100);
}

NcclBlocks NcclBlocksMax(int multiprocessors) {
  constexpr int kMost = 32;  // more only take room from products
  // In shares of a message: two for each of the two collectives, one for each lane.
  constexpr int kShares = kNcclKernelsAtOnce + 2;
  // Powers of two, because NCCL rounds the channels of messages up to one.
  const auto message = static_cast<int>(
      std::bit_floor(static_cast<unsigned>(std::max(1, multiprocessors / kShares))));
  return {.collective = multiprocessors < kShares ? 1 : std::min(2 * message, kMost),
          .message = std::min(message, kMost / 2)};
}

absl::Duration NcclConnectTimeout(int communicator, absl::Duration connect_timeout,
                                  absl::Duration operation_timeout) {
  return std::min(connect_timeout + communicator * connect_timeout / 3,
                  std::max(connect_timeout, operation_timeout));
}

bool MayLoadKernelsLate(absl::string_view pp_schedule) {
  constexpr absl::string_view kComeToTheirEnd[] = {"gpipe", "1f1b", "zb-h1", "dualpipe-v"};
  return absl::c_linear_search(kComeToTheirEnd, pp_schedule);
}

}  // namespace convene::worker
