#include "worker_runtime/comm/nccl/limits.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace convene::worker {

std::string NcclVersionText(int version_code) {
  // Up to NCCL 2.8 the code had one digit less (NCCL_VERSION in nccl.h).
  const int major_unit = version_code >= 10000 ? 10000 : 1000;
  return absl::StrCat(version_code / major_unit, ".", version_code % major_unit / 100, ".",
                      version_code % 100);
}

int NcclBlocksMax(int multiprocessors) {
  constexpr int kMost = 32;  // more only take room from products
  // A power of two, because NCCL rounds the channels of messages up to one.
  const auto share = static_cast<unsigned>(std::max(1, multiprocessors / kNcclKernelsAtOnce));
  return std::min(static_cast<int>(std::bit_floor(share)), kMost);
}

}  // namespace convene::worker
