#include "worker_runtime/shard/buckets.h"

#include <algorithm>
#include <cstddef>

namespace convene::worker {

int64_t BucketCountMin(const Layout& layout, int64_t asked) {
  if (asked > 0) return asked;
  return std::max<int64_t>(40'000'000, int64_t{1'000'000} * layout.gradient_ranks());
}

std::vector<bool> CutIntoBuckets(const std::vector<int64_t>& borders, int64_t bucket_count_min) {
  std::vector<bool> opens_bucket(borders.size() - 1);
  if (bucket_count_min == kUnitBuckets) {
    for (size_t unit = 0; unit < opens_bucket.size(); ++unit) {
      opens_bucket[unit] = borders[unit] < borders[unit + 1];
    }
    return opens_bucket;
  }
  int64_t end = borders.back();
  for (size_t unit = opens_bucket.size(); unit-- > 1;) {
    if (end - borders[unit] < bucket_count_min || end == borders[unit]) continue;
    opens_bucket[unit] = true;
    end = borders[unit];
  }
  return opens_bucket;
}

}  // namespace convene::worker
