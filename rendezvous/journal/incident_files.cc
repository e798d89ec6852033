#include "rendezvous/journal/incident_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

std::string IncidentFiles::PathOf(const std::string& name) const {
  return absl::StrCat(folder_, "/", name);
}

absl::Status IncidentFiles::Write(const std::string& job_id, const IncidentView& incident) {
  CONVENE_RETURN_IF_ERROR(MakeDirectories(folder_));
  // One from before that rule, too. Where the folder is another user's, its owner decides.
  (void)chmod(folder_.c_str(), 0700);
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(PathOf(IncidentName(job_id, incident.number)),
                                          absl::StrCat(IncidentJson(incident), "\n")));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder_));
  for (const std::string& name : NamesThatGo(names, job_id, incident.number)) {
    unlink(PathOf(name).c_str());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<IncidentView>> IncidentFiles::Read(const std::string& job_id) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return std::vector<IncidentView>();
  if (!names.ok()) return names.status();
  std::vector<std::string> reports;
  for (const std::string& name : *names) {
    const bool is_report =
        absl::StartsWith(name, IncidentPrefix(job_id)) && absl::EndsWith(name, ".json");
    if (!is_report) continue;
    absl::StatusOr<std::string> json = ReadFile(PathOf(name));
    if (json.ok()) reports.push_back(*std::move(json));
  }
  return ReadReports(reports);
}

absl::Status IncidentFiles::Forget(const std::string& job_id) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(names.status());
  absl::Status status;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, IncidentPrefix(job_id))) continue;
    if (unlink(PathOf(name).c_str()) != 0 && errno != ENOENT) {
      status.Update(ErrnoStatus(errno, absl::StrCat("remove ", PathOf(name))));
    }
  }
  return status;
}

}  // namespace convene::rendezvous
