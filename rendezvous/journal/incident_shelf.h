// Where the reports of a daemon's incidents are kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// At most Chronicle::kMostIncidents reports a run. One thread at a time, the one that writes the
// journal: a decision may wait for the call that is under way, and for no other.
class IncidentShelf {
 public:
  virtual ~IncidentShelf() = default;

  // The report takes the place of an older one of the same number. Errors: the file system's, or
  // etcd's; the report is not kept then.
  virtual absl::Status Write(const std::string& job_id, const IncidentView& incident) = 0;
  // The run's incidents, by number; a report that is damaged is left out. Errors: etcd's, the file
  // system's. A folder that does not exist has no reports.
  virtual absl::StatusOr<std::vector<IncidentView>> Read(const std::string& job_id) = 0;
  // Removes the reports of a run that the daemon forgets. Errors: etcd's, the file system's; some
  // or all may stand then, and another call tries again.
  virtual absl::Status Forget(const std::string& job_id) = 0;
};

// The beginning of the names of a run's reports, which no other run's have: a readable part and a
// hash of the id, which may hold any byte and be long.
std::string IncidentPrefix(const std::string& job_id);
std::string IncidentName(const std::string& job_id, int64_t number);
// Of `names`, which others may be among, those of the run's oldest reports: for them there is no
// room once `number` is kept. Numbers have gaps where a daemon could not read what was kept.
std::vector<std::string> NamesThatGo(const std::vector<std::string>& names,
                                     const std::string& job_id, int64_t number);
// The last reports of one run, from the JSON of each, by number.
std::vector<IncidentView> ReadReports(const std::vector<std::string>& reports);

}  // namespace convene::rendezvous
