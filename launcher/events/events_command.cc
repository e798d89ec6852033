#include "launcher/events/events_command.h"

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "launcher/events/news.h"
#include "launcher/flags.h"
#include "launcher/print.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

using rendezvous::EventView;
using rendezvous::JobView;

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr absl::Duration kBetweenLooks = absl::Seconds(1);
// The wait for a daemon that has gone away.
constexpr absl::Duration kReturnPatience = absl::Seconds(60);
// The wait for a run that is still to begin: as long as its nodes wait for each other.
constexpr absl::Duration kBeginPatience = absl::Minutes(10);

std::string Line(const EventView& event, bool as_text) {
  if (!as_text) return absl::StrCat(rendezvous::EventJson(event), "\n");
  return absl::StrCat(absl::FormatTime("%Y-%m-%d %H:%M:%E3S", event.time, absl::LocalTimeZone()),
                      " ", Printable(event.kind), ": ", Printable(event.text), "\n");
}

absl::Status PrintNews(const std::vector<EventView>& news, bool as_text) {
  std::string text;
  for (const EventView& event : news) absl::StrAppend(&text, Line(event, as_text));
  return text.empty() ? absl::OkStatus() : Print(text);
}

}  // namespace

void AddFlags(FlagReader* reader, EventsFlags* flags) {
  reader->Word("RUN", &flags->job_id);
  AddPlaceFlags(reader, &flags->endpoint, &flags->credentials, &flags->job_id);
  reader->Switch("follow", &flags->follow,
                 "go on until the run is over; a run may still have to begin", {.letter = 'f'});
  reader->Switch("text", &flags->as_text, "lines for people, in place of JSON");
  reader->Check([flags] {
    return flags->job_id.empty()
               ? absl::InvalidArgumentError(
                     "name a run: `convene events RUN`; `convene status` shows the runs")
               : absl::OkStatus();
  });
}

absl::StatusOr<int> EventsCommand(const EventsFlags& flags) {
  EventNews news;
  bool is_first = true;
  MonotonicTime give_up_at;
  for (;;) {
    const absl::StatusOr<std::vector<JobView>> jobs =
        rendezvous::FetchStatus({flags.endpoint, flags.credentials}, flags.job_id, kTimeout);
    const MonotonicTime now = Clock::Real().Now();
    if (jobs.ok()) {
      const JobView& job = jobs->front();
      CONVENE_RETURN_IF_ERROR(PrintNews(news.Take(job.events), flags.as_text));
      const bool is_over = job.phase == "succeeded" || job.phase == "failed";
      if (!flags.follow || is_over) return static_cast<int>(ExitCode::kOk);
      give_up_at = now + kReturnPatience;
    } else if (is_first && flags.follow && absl::IsNotFound(jobs.status())) {
      std::fprintf(stderr, "convene: %s; waiting for it to begin\n",
                   std::string(jobs.status().message()).c_str());
      give_up_at = now + kBeginPatience;
    } else if (is_first || now >= give_up_at) {
      return jobs.status();
    }
    is_first = false;
    Clock::Real().SleepFor(kBetweenLooks);
  }
}

Command EventsRow() {
  return CommandRow(
      "events", "show the decisions about a run, each with its reason",
      "Show the last 256 events of the run whose --rdzv-id is RUN, oldest first, as JSON lines: "
      "epochs that were formed, stops, failures, nodes that joined, left or were excluded, "
      "stragglers. A daemon that is started again begins anew.",
      EventsCommand);
}

}  // namespace convene::launcher
