// The incidents of a daemon's runs as files: a JSON object each, with the fields of IncidentSummary
// in proto/rendezvous.proto, in the folder "incidents" of --state-dir.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/quorum/job_view.h"

namespace convene::rendezvous {

// At most Chronicle::kMostIncidents files a run. One thread at a time.
class IncidentFiles {
 public:
  // `folder` is made with the first file; "": nothing is written.
  explicit IncidentFiles(std::string folder) : folder_(std::move(folder)) {}

  // Takes the place of an older file of the same number. Errors: the file system's.
  absl::Status Write(const std::string& job_id, const IncidentView& incident);
  // The run's incidents, by number; a file that is damaged is left out.
  std::vector<IncidentView> Read(const std::string& job_id) const;
  // Removes the files of a run that the daemon forgets.
  void Forget(const std::string& job_id);

 private:
  std::string PathOf(const std::string& job_id, int64_t number) const;

  const std::string folder_;
};

}  // namespace convene::rendezvous
