#include "rendezvous/quorum/conduct.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace convene::rendezvous {
namespace {

MonotonicTime LastTrouble(const ConductRecord& record) {
  return record.offences.empty() ? record.excluded_until
                                 : std::max(record.excluded_until, record.offences.back().at);
}

}  // namespace

// Makes room for a new record by forgetting nodes that were quiet for long, else the node whose
// trouble is oldest.
ConductRecord& Conduct::RecordOf(MonotonicTime now, const NodeKey& key) {
  const auto found = records.find(key);
  if (found != records.end()) return found->second;
  if (records.size() >= kMostRecords) {
    std::erase_if(records,
                  [&](const auto& entry) { return LastTrouble(entry.second) + kMemory < now; });
  }
  if (records.size() >= kMostRecords) {
    records.erase(
        std::min_element(records.begin(), records.end(), [](const auto& a, const auto& b) {
          return LastTrouble(a.second) < LastTrouble(b.second);
        }));
  }
  return records[key];
}

void Conduct::Blame(MonotonicTime now, const NodeKey& key, Epoch epoch, const std::string& what) {
  ++changes;
  std::vector<ConductRecord::Offence>& offences = RecordOf(now, key).offences;
  if (offences.size() == kMostOffences) offences.erase(offences.begin());
  offences.push_back({epoch, now});
  const ConductRecord::Offence& oldest = offences.front();
  if (offences.size() < kMostOffences || oldest.at + kMemory < now ||
      epoch.value() - oldest.epoch.value() >= kEpochsOfMemory) {
    return;
  }
  Exclude(now, key, absl::StrCat("blamed ", kMostOffences, " times lately, the last time: ", what));
}

void Conduct::Exclude(MonotonicTime now, const NodeKey& key, std::string why) {
  ++changes;
  ConductRecord& record = RecordOf(now, key);
  for (MonotonicTime forgotten = record.excluded_until + kMemory;
       record.exclusions > 0 && forgotten <= now; forgotten = forgotten + kMemory) {
    --record.exclusions;
  }
  absl::Duration exclusion = kShortestExclusion;
  for (int i = 0; i < record.exclusions && exclusion < kLongestExclusion; ++i) exclusion *= 2;
  // The longest exclusion needs no higher count.
  if (exclusion < kLongestExclusion) ++record.exclusions;
  record.excluded_until =
      std::max(record.excluded_until, now + std::min(exclusion, kLongestExclusion));
  record.why = std::move(why);
}

const ConductRecord* Conduct::Excluded(MonotonicTime now, const NodeKey& key) const {
  const auto found = records.find(key);
  return found == records.end() || found->second.excluded_until <= now ? nullptr : &found->second;
}

void Conduct::Remember(MonotonicTime now, Epoch epoch, std::string what) {
  ++changes;
  if (last_failures.size() == kMostFailures) last_failures.pop_back();
  last_failures.insert(last_failures.begin(), FailureRecord{epoch, std::move(what), now});
}

}  // namespace convene::rendezvous
