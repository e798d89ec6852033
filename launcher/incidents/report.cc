#include "launcher/incidents/report.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

using rendezvous::IncidentView;

std::string TimeText(absl::Time time, absl::TimeZone zone) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, zone);
}

std::string Head(const IncidentView& incident, absl::TimeZone zone) {
  return absl::StrCat("#", incident.number, "  ", TimeText(incident.time, zone), "  epoch ",
                      incident.epoch.value(), "  ", incident.verdict, " (", incident.certainty,
                      ")");
}

std::string Times(const IncidentView& incident) {
  if (incident.times_here < 2) return "";
  // The code's failure is no node's: that node's rank was only the first to be heard.
  const bool is_of_code = incident.verdict == "code" && incident.certainty != "a guess";
  return absl::StrCat("the same failure on ", incident.host, ", ", incident.times_here, " times",
                      incident.times_here >= 3 && !is_of_code ? ": look at that node" : "");
}

void AddLines(const char* title, const std::vector<std::string>& lines, std::string* text) {
  if (lines.empty()) return;
  absl::StrAppend(text, "  ", title, "\n");
  for (const std::string& line : lines) absl::StrAppend(text, "    ", line, "\n");
}

std::string FailureList(const std::vector<rendezvous::FailureView>& failures) {
  if (failures.empty()) return "no epoch of this run has failed\n";
  std::string text = "this daemon keeps no reports; its last failures, newest first:\n";
  for (const rendezvous::FailureView& failure : failures) {
    absl::StrAppend(&text, "  epoch ", failure.epoch.value(), ", ",
                    absl::FormatDuration(absl::Trunc(failure.ago, absl::Seconds(1))),
                    " ago: ", failure.what, "\n");
  }
  return text;
}

}  // namespace

std::string IncidentList(const rendezvous::JobView& job, absl::TimeZone zone) {
  if (job.incidents.empty()) return PrintableLines(FailureList(job.last_failures));
  std::string text;
  for (const IncidentView& incident : job.incidents) {
    const std::string times = Times(incident);
    absl::StrAppend(&text, Head(incident, zone), "  ", incident.cause,
                    times.empty() ? "" : absl::StrCat(" (", times, ")"), "\n");
  }
  return PrintableLines(text);
}

std::string IncidentReport(const IncidentView& incident, absl::TimeZone zone,
                           const std::vector<std::string>& torch_lines) {
  std::string text = absl::StrCat(Head(incident, zone), "\n  first cause: ", incident.cause, "\n");
  if (const std::string times = Times(incident); !times.empty()) {
    absl::StrAppend(&text, "  ", times, "\n");
  }
  AddLines("evidence:", incident.evidence, &text);
  for (const rendezvous::WorkerFailure& failure : incident.failures) {
    absl::StrAppend(&text, "  rank ", failure.global_rank, " on ", failure.host, " (pid ",
                    failure.pid, "): ", failure.why, "\n");
    AddLines("its error:", failure.error_lines, &text);
    AddLines("its last lines:", failure.last_log_lines, &text);
    AddLines("the kernel:", failure.kernel_lines, &text);
  }
  AddLines("where ranks stood:", incident.places, &text);
  AddLines("PyTorch's flight recorder:", torch_lines, &text);
  absl::StrAppend(&text, "  then: ",
                  incident.outcome.empty() ? "nothing was decided yet" : incident.outcome, "\n");
  return PrintableLines(text);
}

}  // namespace convene::launcher
