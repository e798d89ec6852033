#include "rendezvous/attend/incident_files.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rendezvous/quorum/chronicle.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kReadableBytes = 64;

// A run's id may hold any byte and be longer than a file's name: a readable part, and a hash of all
// of it (FNV-1a, which is the same on every machine).
std::string PrefixOf(const std::string& job_id) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string readable = job_id.substr(0, kReadableBytes);
  for (char& c : readable) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  }
  return absl::StrCat(readable, ".", absl::Hex(hash, absl::kZeroPad16), ".");
}

}  // namespace

std::string IncidentFiles::PathOf(const std::string& job_id, int64_t number) const {
  return absl::StrCat(folder_, "/", PrefixOf(job_id), number, ".json");
}

absl::Status IncidentFiles::Write(const std::string& job_id, const IncidentView& incident) {
  if (folder_.empty()) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(MakeDirectories(folder_));
  CONVENE_RETURN_IF_ERROR(
      WriteFileAtomic(PathOf(job_id, incident.number), absl::StrCat(IncidentJson(incident), "\n")));
  const auto oldest = incident.number - static_cast<int64_t>(Chronicle::kMostIncidents);
  if (oldest >= 1) unlink(PathOf(job_id, oldest).c_str());
  return absl::OkStatus();
}

std::vector<IncidentView> IncidentFiles::Read(const std::string& job_id) const {
  std::vector<IncidentView> incidents;
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder_);
  if (!names.ok()) return incidents;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, PrefixOf(job_id)) || !absl::EndsWith(name, ".json")) continue;
    const absl::StatusOr<std::string> json = ReadFile(absl::StrCat(folder_, "/", name));
    IncidentView incident;
    if (json.ok() && ReadIncidentJson(*json, &incident)) incidents.push_back(std::move(incident));
  }
  std::sort(incidents.begin(), incidents.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  if (incidents.size() > Chronicle::kMostIncidents) {
    incidents.erase(incidents.begin(), incidents.end() - Chronicle::kMostIncidents);
  }
  return incidents;
}

void IncidentFiles::Forget(const std::string& job_id) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(folder_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (absl::StartsWith(name, PrefixOf(job_id))) unlink(absl::StrCat(folder_, "/", name).c_str());
  }
}

}  // namespace convene::rendezvous
