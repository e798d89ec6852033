#include "rendezvous/journal/incident_shelf.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/chronicle.h"
#include "rendezvous/wire/status_json.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kReadableBytes = 64;

}  // namespace

std::string IncidentPrefix(const std::string& job_id) {
  // FNV-1a, which is the same on every machine.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  std::string readable = job_id.substr(0, kReadableBytes);
  for (char& c : readable) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  }
  return absl::StrCat(readable, ".", absl::Hex(hash, absl::kZeroPad16), ".");
}

std::string IncidentName(const std::string& job_id, int64_t number) {
  return absl::StrCat(IncidentPrefix(job_id), number, ".json");
}

int64_t NumberThatGoes(int64_t number) {
  return std::max<int64_t>(0, number - static_cast<int64_t>(Chronicle::kMostIncidents));
}

std::vector<IncidentView> ReadReports(const std::vector<std::string>& reports) {
  std::vector<IncidentView> incidents;
  for (const std::string& report : reports) {
    IncidentView incident;
    if (ReadIncidentJson(report, &incident)) incidents.push_back(std::move(incident));
  }
  std::sort(incidents.begin(), incidents.end(),
            [](const auto& a, const auto& b) { return a.number < b.number; });
  if (incidents.size() > Chronicle::kMostIncidents) {
    incidents.erase(incidents.begin(), incidents.end() - Chronicle::kMostIncidents);
  }
  return incidents;
}

}  // namespace convene::rendezvous
