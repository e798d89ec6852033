#include "rendezvous/web/status_board.h"

#include <algorithm>

#include "absl/time/time.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr int kReuse = 20;
constexpr absl::Duration kLongestReuse = absl::Seconds(5);
constexpr size_t kMostEntries = 64;

}  // namespace

absl::StatusOr<StatusBoard::Text> StatusBoard::Get(const std::string& job_id) {
  MutexLock lock(&mutex_);
  const MonotonicTime begin = clock_->Now();
  const auto found = entries_.find(job_id);
  if (found != entries_.end() && begin < found->second.good_until) return found->second.text;
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JobView> views, source_(job_id));
  const auto text = std::make_shared<const std::string>(writer_(views));
  const MonotonicTime end = clock_->Now();
  if (found == entries_.end() && entries_.size() >= kMostEntries) entries_.clear();
  const absl::Duration reuse =
      std::max(least_reuse_, std::min(kReuse * (end - begin), kLongestReuse));
  entries_[job_id] = {text, end + reuse};
  return text;
}

}  // namespace convene::rendezvous
