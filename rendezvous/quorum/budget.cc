#include "rendezvous/quorum/budget.h"

#include <algorithm>

namespace convene::rendezvous {

void RestartBudget::Progress(int64_t step) {
  if (highest_step.has_value() && step <= *highest_step) return;
  highest_step = step;
  advanced = true;
}

void RestartBudget::Fail(MonotonicTime now) {
  ++failure_count;
  if (failed_at.size() == kMostRemembered) failed_at.erase(failed_at.begin());
  failed_at.push_back(now);
  if (highest_step.has_value()) stuck_count = advanced ? 0 : stuck_count + 1;
  advanced = false;
}

int RestartBudget::CountedAt(MonotonicTime now, absl::Duration window) const {
  if (window == absl::ZeroDuration()) return failure_count;
  const auto first = std::lower_bound(failed_at.begin(), failed_at.end(), now - window);
  return static_cast<int>(failed_at.end() - first);
}

}  // namespace convene::rendezvous
