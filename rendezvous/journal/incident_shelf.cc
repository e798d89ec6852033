#include "rendezvous/journal/incident_shelf.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "rendezvous/quorum/chronicle.h"
#include "rendezvous/wire/status_json.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kReadableBytes = 64;
constexpr char kSuffix[] = ".json";

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
  return absl::StrCat(IncidentPrefix(job_id), number, kSuffix);
}

std::vector<std::string> NamesThatGo(const std::vector<std::string>& names,
                                     const std::string& job_id, int64_t number) {
  const std::string prefix = IncidentPrefix(job_id);
  std::map<int64_t, std::string> others;
  for (const std::string& name : names) {
    absl::string_view rest = name;
    int64_t other = 0;
    const bool is_report = absl::ConsumePrefix(&rest, prefix) &&
                           absl::ConsumeSuffix(&rest, kSuffix) && absl::SimpleAtoi(rest, &other);
    if (is_report && other != number) others[other] = name;
  }
  std::vector<std::string> going;
  for (; others.size() >= Chronicle::kMostIncidents; others.erase(others.begin())) {
    going.push_back(std::move(others.begin()->second));
  }
  return going;
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
