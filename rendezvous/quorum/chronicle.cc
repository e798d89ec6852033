#include "rendezvous/quorum/chronicle.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kTextBytes = 500;
constexpr size_t kMostOthers = 3;

}  // namespace

void Chronicle::AddEvent(MonotonicTime now, Epoch epoch, std::string kind,
                         const std::string& text) {
  if (events_.size() == kMostEvents) events_.pop_front();
  events_.push_back({++last_event_, TimeOf(now), std::move(kind), Utf8(text, kTextBytes), epoch});
}

Incident* Chronicle::Last(Epoch epoch) {
  return incidents_.empty() || incidents_.back().epoch != epoch ? nullptr : &incidents_.back();
}

void Chronicle::AddIncident(MonotonicTime now, Epoch epoch, const std::string& cause,
                            const std::string& host, std::vector<std::string> places,
                            bool is_unfit) {
  Incident* incident = Last(epoch);
  if (incident == nullptr) {
    // Nothing more comes of the epoch before.
    if (!incidents_.empty()) {
      for (WorkerFailure& failure : incidents_.back().failures) ShortenFailure(&failure);
    }
    if (incidents_.size() == kMostIncidents) {
      changed_.erase(incidents_.front().number);
      incidents_.pop_front();
    }
    incident = &incidents_.emplace_back(
        Incident{.number = ++last_incident_, .epoch = epoch, .at = TimeOf(now)});
  }
  incident->cause = Utf8(cause, kTextBytes);
  incident->host = host;
  incident->is_unfit = is_unfit;
  if (places.size() > Incident::kMostPlaces) places.resize(Incident::kMostPlaces);
  incident->places = std::move(places);
  Judge(*incident);
}

void Chronicle::AddFailure(Epoch epoch, WorkerFailure failure, bool is_cause) {
  Incident* const incident = Last(epoch);
  if (incident == nullptr) return;
  std::vector<WorkerFailure>& failures = incident->failures;
  failures.insert(is_cause ? failures.begin() : failures.end(), std::move(failure));
  if (failures.size() > Incident::kMostFailures) failures.pop_back();
  Judge(*incident);
}

void Chronicle::Judge(Incident& incident) {
  incident.verdict = JudgeIncident(incident.cause, incident.failures, incident.is_unfit);
  incident.times_here = static_cast<int>(absl::c_count_if(incidents_, [&](const Incident& other) {
    return other.number <= incident.number && IsAlike(other, incident);
  }));
  changed_.insert(incident.number);
}

void Chronicle::AddOutcome(const std::string& outcome) {
  for (Incident& incident : incidents_) {
    if (!incident.outcome.empty()) continue;
    incident.outcome = Utf8(outcome, kTextBytes);
    changed_.insert(incident.number);
  }
}

std::string Chronicle::OtherFailures(Epoch epoch) const {
  if (incidents_.empty() || incidents_.back().epoch != epoch) return "";
  std::vector<const Incident*> told = {&incidents_.back()};
  std::string text;
  for (const Incident& incident : incidents_) {
    const bool is_other = absl::c_all_of(
        told, [&](const Incident* other) { return AreDifferentFailures(incident, *other); });
    if (!is_other || told.size() > kMostOthers) continue;
    told.push_back(&incident);
    const WorkerFailure& failure = incident.failures.front();
    const std::vector<std::string>& lines = failure.last_log_lines;
    const bool is_stack = absl::StartsWith(failure.why, "hang:");
    absl::StrAppend(&text, "; epoch ", incident.epoch.value(),
                    " failed otherwise: ", incident.cause,
                    lines.empty() || is_stack ? "" : absl::StrCat(": ", lines.back()));
  }
  return text;
}

std::vector<IncidentView> Chronicle::TakeChanged() {
  std::vector<IncidentView> changed;
  for (const Incident& incident : incidents_) {
    if (changed_.count(incident.number) > 0) changed.push_back(ViewOf(incident));
  }
  changed_.clear();
  return changed;
}

void Chronicle::Restore(const IncidentView& view) {
  NumberAbove(view.number);
  incidents_.push_back({.number = view.number,
                        .epoch = view.epoch,
                        .at = view.time,
                        .cause = view.cause,
                        .host = view.host,
                        .verdict = {view.verdict, view.certainty, view.evidence},
                        .failures = view.failures,
                        .places = view.places,
                        .outcome = view.outcome,
                        .times_here = view.times_here});
}

IncidentView Chronicle::ViewOf(const Incident& incident) {
  std::vector<WorkerFailure> failures = incident.failures;
  for (WorkerFailure& failure : failures) ShortenFailure(&failure);
  return {.number = incident.number,
          .epoch = incident.epoch,
          .verdict = incident.verdict.word,
          .cause = incident.cause,
          .time = incident.at,
          .certainty = incident.verdict.certainty,
          .evidence = incident.verdict.evidence,
          .host = incident.host,
          .failures = std::move(failures),
          .places = incident.places,
          .outcome = incident.outcome,
          .times_here = incident.times_here};
}

void Chronicle::Describe(JobView* view) const {
  view->events.assign(events_.begin(), events_.end());
  for (auto incident = incidents_.rbegin(); incident != incidents_.rend(); ++incident) {
    view->incidents.push_back(ViewOf(*incident));
  }
}

}  // namespace convene::rendezvous
