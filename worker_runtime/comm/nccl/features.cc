#include "worker_runtime/comm/nccl/features.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace convene::worker {

NcclFeatures NcclFeaturesOf(int version_code) {
  NcclFeatures features;
  features.version_code = version_code;
  features.usable = version_code >= 21900;
  features.all_to_all = version_code >= 22800;
  features.revoke = version_code >= 22809;
  features.shrink = version_code >= 22700;
  features.grow = version_code >= 22900;
  features.restart_in_process =
      features.usable && !(version_code >= 22803 && version_code <= 22808);
  return features;
}

int NcclBlocksMax(int multiprocessors) {
  constexpr int kMost = 32;  // more only take room from products
  // A power of two, because NCCL rounds the channels of messages up to one.
  const auto share = static_cast<unsigned>(std::max(1, multiprocessors / kNcclKernelsAtOnce));
  return std::min(static_cast<int>(std::bit_floor(share)), kMost);
}

std::string NcclVersionText(int version_code) {
  // Up to 2.8 the code had one digit less (NCCL_VERSION in nccl.h).
  const int major_unit = version_code >= 10000 ? 10000 : 1000;
  return absl::StrCat(version_code / major_unit, ".", version_code % major_unit / 100, ".",
                      version_code % 100);
}

}  // namespace convene::worker
