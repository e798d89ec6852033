#include "launcher/incidents/incidents_command.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "launcher/flags.h"
#include "launcher/incidents/report.h"
#include "launcher/incidents/torch_dumps.h"
#include "launcher/print.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

using rendezvous::IncidentView;

constexpr absl::Duration kTimeout = absl::Seconds(5);

absl::Status Finish(IncidentsFlags* flags) {
  const std::vector<std::string>& words = flags->words;
  if (!words.empty()) flags->job_id = words[0];
  if (flags->job_id.empty()) {
    return absl::InvalidArgumentError(
        "name a run: `convene incidents RUN`; `convene status` shows the runs");
  }
  if (words.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("`convene incidents RUN [NUMBER]`: \"", words[2], "\" is one too many"));
  }
  if (words.size() == 2 && (!absl::SimpleAtoi(words[1], &flags->number) || flags->number < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an incident's number is 1 or more, not \"", words[1], "\""));
  }
  if (!flags->torch_dumps.empty() && (flags->number == 0 || flags->is_json)) {
    return absl::InvalidArgumentError(
        "--torch-dumps is told in the text of one incident: give its NUMBER, and no --json");
  }
  return absl::OkStatus();
}

}  // namespace

void AddFlags(FlagReader* reader, IncidentsFlags* flags) {
  reader->Words("RUN [NUMBER]", &flags->words);
  // Before AddPlaceFlags' check, which looks for the run.
  reader->Check([flags] { return Finish(flags); });
  AddPlaceFlags(reader, &flags->endpoint, &flags->credentials, &flags->job_id);
  reader->Switch("json", &flags->is_json, "each report as a JSON object, on one line");
  reader->Option(
      "torch-dumps", &flags->torch_dumps,
      "also what PyTorch's dumps PREFIX<rank> tell, and torchfrtrace says of them: which rank "
      "a collective waits for",
      {.value = "PREFIX"});
}

absl::StatusOr<int> IncidentsCommand(const IncidentsFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(
      const std::vector<rendezvous::JobView> jobs,
      rendezvous::FetchStatus({flags.endpoint, flags.credentials}, flags.job_id, kTimeout));
  std::vector<IncidentView> incidents = jobs.front().incidents;
  if (flags.number != 0) {
    std::erase_if(incidents,
                  [&](const IncidentView& incident) { return incident.number != flags.number; });
    if (incidents.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "run ", flags.job_id, " has no incident ", flags.number,
          " (the daemon keeps the last 32); `convene incidents ", flags.job_id, "` lists them"));
    }
  }
  std::string text;
  ExitCode code = ExitCode::kOk;
  if (flags.is_json) {
    for (const IncidentView& incident : incidents) {
      absl::StrAppend(&text, rendezvous::IncidentJson(incident), "\n");
    }
  } else if (flags.number != 0) {
    TorchReading reading = {.lines = {}, .is_read = true};
    if (!flags.torch_dumps.empty()) {
      CONVENE_ASSIGN_OR_RETURN(reading, ReadTorchDumps(flags.torch_dumps));
    }
    text = IncidentReport(incidents.front(), absl::LocalTimeZone(), reading.lines);
    // The report stands without the dumps, and a script learns that they were not read.
    if (!reading.is_read) code = ExitCode::kUsage;
  } else {
    text = IncidentList(jobs.front(), absl::LocalTimeZone());
  }
  CONVENE_RETURN_IF_ERROR(Print(text));
  return static_cast<int>(code);
}

Command IncidentsRow() {
  return CommandRow(
      "incidents", "show why epochs of a run failed, and who or what is to blame",
      "Show the epochs of the run whose --rdzv-id is RUN that failed, newest first, each with its "
      "first cause and a verdict: code, node, network, data, or somebody's kill.",
      IncidentsCommand);
}

}  // namespace convene::launcher
