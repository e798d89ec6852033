#include "agent/output/first_cause.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/core/exit_classifier.h"
#include "agent/output/last_lines.h"

namespace convene::agent {
namespace {

enum class Place { kSucceeded, kRecorded, kSilent, kAsksAgain };

using Key = std::tuple<Place, absl::Time, absl::Time>;

std::pair<absl::Time, absl::Time> TimesOf(const ErrorRecord& record) {
  return {record.time, record.written};
}

Key KeyOf(const WorkerExited& exited, const std::map<int, ErrorRecord>& records, bool in_session) {
  const ExitKind kind = ClassifyExit(exited.status, in_session).kind;
  const auto record = records.find(exited.local_rank);
  if (kind == ExitKind::kSucceeded) return {Place::kSucceeded, {}, {}};
  if (kind == ExitKind::kMembershipChanged) return {Place::kAsksAgain, {}, {}};
  if (record == records.end()) return {Place::kSilent, {}, {}};
  return {Place::kRecorded, record->second.time, record->second.written};
}

}  // namespace

void OrderByCause(const std::map<int, ErrorRecord>& records, const std::set<int>& in_session,
                  std::vector<WorkerExited>& ended) {
  const auto key = [&](const WorkerExited& exited) {
    return KeyOf(exited, records, in_session.count(exited.local_rank) > 0);
  };
  std::stable_sort(ended.begin(), ended.end(),
                   [&](const WorkerExited& a, const WorkerExited& b) { return key(a) < key(b); });
  const auto first = absl::c_find_if(ended, [&](const WorkerExited& exited) {
    return std::get<Place>(key(exited)) != Place::kSucceeded;
  });
  if (first == ended.end()) return;
  for (auto failed = first; failed != ended.end(); ++failed) {
    const auto record = records.find(failed->local_rank);
    if (record == records.end()) continue;
    failed->error_lines = record->second.lines;
    failed->error_file = record->second.path;
  }
  // Python takes its time to end after an exception; its peers may be gone before it.
  std::map<int, ErrorRecord> of_running = records;
  for (const WorkerExited& exited : ended) of_running.erase(exited.local_rank);
  const auto earliest = absl::c_min_element(of_running, [](const auto& a, const auto& b) {
    return TimesOf(a.second) < TimesOf(b.second);
  });
  if (earliest == of_running.end()) return;
  const auto own = records.find(first->local_rank);
  if (own != records.end() && TimesOf(own->second) <= TimesOf(earliest->second)) return;
  first->error_lines.insert(
      first->error_lines.begin(),
      absl::StrCat("local rank ", earliest->first,
                   " recorded an error before it: ", earliest->second.lines[0])
          .substr(0, LastLines::kLongestLine));
}

}  // namespace convene::agent
