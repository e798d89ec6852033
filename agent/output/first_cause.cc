#include "agent/output/first_cause.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "agent/core/exit_classifier.h"
#include "agent/output/last_lines.h"

namespace convene::agent {
namespace {

enum class Place { kSucceeded, kRecorded, kSilent, kAsksAgain };

using Key = std::tuple<Place, absl::Time, absl::Time>;

Key KeyOf(const WorkerExited& exited, const std::map<int, ErrorRecord>& records) {
  const ExitKind kind = ClassifyExit(exited.status, /*in_session=*/false).kind;
  const auto record = records.find(exited.local_rank);
  if (kind == ExitKind::kSucceeded) return {Place::kSucceeded, {}, {}};
  if (kind == ExitKind::kMembershipChanged) return {Place::kAsksAgain, {}, {}};
  if (record == records.end()) return {Place::kSilent, {}, {}};
  return {Place::kRecorded, record->second.time, record->second.written};
}

}  // namespace

void OrderByCause(const std::map<int, ErrorRecord>& records, std::vector<WorkerExited>& ended) {
  std::stable_sort(ended.begin(), ended.end(), [&](const WorkerExited& a, const WorkerExited& b) {
    return KeyOf(a, records) < KeyOf(b, records);
  });
  std::set<int> ended_ranks;
  for (const WorkerExited& exited : ended) ended_ranks.insert(exited.local_rank);
  WorkerExited* first = nullptr;
  for (WorkerExited& exited : ended) {
    const Place place = std::get<Place>(KeyOf(exited, records));
    if (place == Place::kSucceeded) continue;
    if (first == nullptr) first = &exited;
    const auto record = records.find(exited.local_rank);
    if (record == records.end()) continue;
    exited.error_lines = record->second.lines;
    exited.error_file = record->second.path;
  }
  if (first == nullptr) return;
  // Python takes its time to end after an exception; its peers may be gone before it.
  const auto time_of = [](const ErrorRecord& record) {
    return std::make_pair(record.time, record.written);
  };
  const auto own = records.find(first->local_rank);
  const ErrorRecord* earliest = own == records.end() ? nullptr : &own->second;
  int earliest_rank = -1;
  for (const auto& [local_rank, record] : records) {
    if (ended_ranks.count(local_rank) > 0) continue;
    if (earliest != nullptr && time_of(record) >= time_of(*earliest)) continue;
    earliest = &record;
    earliest_rank = local_rank;
  }
  if (earliest_rank < 0) return;
  first->error_lines.insert(first->error_lines.begin(),
                            absl::StrCat("local rank ", earliest_rank,
                                         " recorded an error before it: ", earliest->lines[0])
                                .substr(0, LastLines::kLongestLine));
}

}  // namespace convene::agent
