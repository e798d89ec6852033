// PURE. The nodes that broke a job, and the time for which each has to stay out. Durable: a
// restarted daemon must know this.
//
// A node is blamed for
//   a failure of its workers that cost a restart,
//   its loss, when that ended an epoch, or when it came and went beside a job that had begun,
//   not stopping its workers within StopTimeout (decide.h);
// never for the echo of another node's trouble, nor for leaving in order, nor for events that a
// restarted daemon does not remember. Blamed kMostOffences times within kMemory and kEpochsOfMemory
// epochs, it is excluded: 30 s, and twice as long each further time, up to 30 min. One exclusion is
// forgotten for each kMemory without a new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

// Names a node across its streams and processes.
struct NodeKey {
  std::string host;
  int node_rank = -1;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 in a default <=> for a pointer
  friend auto operator<=>(const NodeKey&, const NodeKey&) = default;
};

struct ConductRecord {
  struct Offence {
    Epoch epoch;
    MonotonicTime at;
  };

  std::vector<Offence> offences;  // the last Conduct::kMostOffences, oldest first
  int exclusions = 0;             // remembered at excluded_until
  MonotonicTime excluded_until;   // in the past: it may take part
  std::string why;                // of the last exclusion
};

// The cause of an epoch's end, for people.
struct FailureRecord {
  Epoch epoch;
  std::string what;
  MonotonicTime at;
};

// Plain data; not thread-safe.
struct Conduct {
  static constexpr size_t kMostOffences = 3;
  static constexpr int kEpochsOfMemory = 10;
  static constexpr absl::Duration kMemory = absl::Hours(1);
  static constexpr absl::Duration kShortestExclusion = absl::Seconds(30);
  static constexpr absl::Duration kLongestExclusion = absl::Minutes(30);
  static constexpr size_t kMostFailures = 8;
  static constexpr size_t kMostRecords = 65536;

  std::map<NodeKey, ConductRecord> records;  // of nodes that were blamed
  std::vector<FailureRecord> last_failures;  // newest first, at most kMostFailures
  int64_t changes = 0;                       // to either, so far

  void Blame(MonotonicTime now, const NodeKey& key, Epoch epoch, const std::string& what);
  // Excludes the node at once, because the node itself says that it is unfit.
  void Exclude(MonotonicTime now, const NodeKey& key, std::string why);
  // The exclusion that holds at `now`; nullptr when there is none.
  const ConductRecord* Excluded(MonotonicTime now, const NodeKey& key) const;
  void Remember(MonotonicTime now, Epoch epoch, std::string what);

 private:
  ConductRecord& RecordOf(MonotonicTime now, const NodeKey& key);
};

}  // namespace convene::rendezvous
