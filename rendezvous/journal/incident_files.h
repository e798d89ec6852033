// The incidents of a daemon's runs as files: a JSON object each, with the fields of IncidentSummary
// in proto/rendezvous.proto, in the folder "incidents" of --state-dir.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/journal/incident_shelf.h"

namespace convene::rendezvous {

class IncidentFiles final : public IncidentShelf {
 public:
  // `folder` is made with the first file, and only its owner reads it: reports have workers' lines.
  explicit IncidentFiles(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Write(const std::string& job_id, const IncidentView& incident) override;
  absl::StatusOr<std::vector<IncidentView>> Read(const std::string& job_id) override;
  absl::Status Forget(const std::string& job_id) override;

 private:
  std::string PathOf(const std::string& name) const;

  const std::string folder_;
};

}  // namespace convene::rendezvous
