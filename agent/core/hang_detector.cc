#include "agent/core/hang_detector.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace convene::agent {
namespace {

constexpr char kStep[] = "step";
constexpr char kCheckpoint[] = "checkpoint";

constexpr size_t kSamplesMax = 128;
constexpr int64_t kStepsNeeded = 20;
constexpr int64_t kStaysNeeded = 3;
// The first steps of an epoch have no automatic limit and teach none: they compile, connect and try
// algorithms.
constexpr int64_t kFirstSteps = 3;
// A worker may invent names of phases; only the first so many of them get limits, steps and
// checkpoints always.
constexpr size_t kPhasesMax = 16;
constexpr absl::Duration kShortFloor = absl::Seconds(30);
constexpr absl::Duration kLongFloor = absl::Minutes(15);
constexpr absl::Duration kStayFloor = absl::Minutes(10);
// The limit before anything is known: models compile, and read terabytes, before their first step.
constexpr absl::Duration kUnseen = absl::Hours(1);
constexpr int kTimesMedian = 10;
constexpr int kTimesLongestStep = 3;
constexpr int kTimesLongestStay = 10;
// The time for the agent of the laggard's node to report first.
constexpr absl::Duration kNeighbourPatience = absl::Seconds(10);
constexpr absl::Duration kRateWindow = absl::Minutes(1);
constexpr size_t kGroupsShown = 8;
constexpr size_t kWaitsShown = 3;
// The limit of a stopped process where none is given. It is below the time that a collective of
// convene-train waits for a peer (300 s), so that the cause is told before its echo.
constexpr absl::Duration kStoppedLimit = absl::Minutes(1);
// Workers that end together do so within this time.
constexpr absl::Duration kEndPatience = absl::Seconds(10);

std::string Text(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  return seconds < 10 ? absl::StrFormat("%.3g s", seconds) : absl::StrFormat("%.0f s", seconds);
}

absl::Duration MedianOf(const std::deque<absl::Duration>& durations) {
  std::vector<absl::Duration> sorted(durations.begin(), durations.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

absl::Duration LongestOf(const std::deque<absl::Duration>& durations) {
  return *std::max_element(durations.begin(), durations.end());
}

// "rank 3", "ranks 4,5,6".
std::string RanksText(const std::vector<int>& ranks) {
  const auto end =
      ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kGroupsShown));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks.begin(), end, ","),
                      ranks.size() > kGroupsShown ? ",..." : "");
}

}  // namespace

void HangDetector::BeginEpoch(int first_global_rank, int world_size, MonotonicTime now) {
  if (world_size != world_size_) learnt_.clear();  // Steps take another time now.
  first_global_rank_ = first_global_rank;
  world_size_ = world_size;
  started_ = last_look_ = now;
  workers_.clear();
  ended_.clear();
  has_told_of_end_ = false;
}

void HangDetector::EndedWell(int local_rank, std::optional<int64_t> step, MonotonicTime now) {
  Forget(local_rank);
  ended_[local_rank] = {step, now};
}

std::optional<HangVerdict> HangDetector::Look(const std::map<int, WorkerReading>& readings,
                                              MonotonicTime now) {
  const absl::Duration gap = now - last_look_ - look_interval_;
  const bool after_gap = gap > 2 * look_interval_;
  last_look_ = now;
  if (after_gap) BridgeGap(gap, now);
  for (const auto& [local_rank, reading] : readings) Update(local_rank, reading, after_gap, now);
  NoteNews(now);
  if (workers_.empty()) return std::nullopt;

  HangVerdict verdict;
  bool is_over = false;
  for (const auto& [local_rank, worker] : workers_) {
    if (!worker.stopped_since.has_value()) continue;
    verdict.local_ranks.push_back(local_rank);
    is_over |= IsStoppedTooLong(local_rank, worker, now);
  }
  const bool is_one_stopped = !verdict.local_ranks.empty();
  const WorkerReading& first = workers_.begin()->second.last;
  const bool all_alike =
      !is_one_stopped && std::all_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
        return entry.second.last.step == first.step && entry.second.last.phase == first.phase;
      });
  const std::vector<int> laggards = Laggards(all_alike, now);
  if (!is_over && laggards.empty()) return std::nullopt;
  if (!is_one_stopped) verdict.local_ranks = laggards;
  // A checkpoint follows a finished step, so a worker that is still in it is behind workers in the
  // next step.
  const auto place = [this](int local_rank) {
    const Worker& worker = workers_.at(local_rank);
    return std::make_tuple(worker.last.awaited_rank >= 0, worker.last.phase == kStep, worker.since);
  };
  std::stable_sort(verdict.local_ranks.begin(), verdict.local_ranks.end(),
                   [&](int a, int b) { return place(a) < place(b); });
  verdict.why = Why(verdict.local_ranks, all_alike, now);
  return verdict;
}

std::vector<int> HangDetector::Laggards(bool all_alike, MonotonicTime now) const {
  int64_t lowest_step = workers_.begin()->second.last.step;
  for (const auto& [local_rank, worker] : workers_) {
    lowest_step = std::min(lowest_step, worker.last.step);
  }
  std::vector<int> local_ranks;
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.last.step != lowest_step) continue;
    if (!IsOverdue(local_rank, worker, all_alike, now)) return {};
    local_ranks.push_back(local_rank);
  }
  return local_ranks;
}

absl::Duration HangDetector::StoppedLimit() const {
  return limits_.step > absl::ZeroDuration() ? std::min(limits_.step, kStoppedLimit)
                                             : kStoppedLimit;
}

bool HangDetector::IsStoppedTooLong(int local_rank, const Worker& worker, MonotonicTime now) const {
  if (IsOverdue(local_rank, worker, /*all_alike=*/false, now)) return true;
  const bool is_given = GivenLimit(worker) > absl::ZeroDuration();
  return limits_.automatic && !is_given && now - *worker.stopped_since > StoppedLimit();
}

// No worker is to blame for the time in which the agent did not look.
void HangDetector::BridgeGap(absl::Duration gap, MonotonicTime now) {
  started_ = started_ + gap;
  for (auto& [local_rank, worker] : workers_) {
    worker.since = std::min(worker.since + gap, now);
    if (worker.stopped_since.has_value()) {
      worker.stopped_since = std::min(*worker.stopped_since + gap, now);
    }
    worker.is_sample_good = false;
  }
}

void HangDetector::NoteState(Worker& worker, const WorkerReading& reading, MonotonicTime now) {
  worker.last.awaited_rank = reading.awaited_rank;
  worker.last.tells_awaited = reading.tells_awaited;
  worker.last.awaits = reading.awaits;
  if (!reading.is_stopped) worker.stopped_since.reset();
  if (reading.is_stopped && !worker.stopped_since.has_value()) worker.stopped_since = now;
}

void HangDetector::Update(int local_rank, const WorkerReading& reading, bool after_gap,
                          MonotonicTime now) {
  const auto [found, is_new] = workers_.try_emplace(local_rank);
  Worker& worker = found->second;
  NoteState(worker, reading, now);
  if (is_new) {
    worker.last = reading;
    worker.since = std::clamp(reading.changed_at, std::min(started_, now), now);
    worker.recent.emplace_back(worker.since, reading.step);
    return;
  }
  const bool is_other_phase = reading.phase != worker.last.phase;
  if (reading.step == worker.last.step && !is_other_phase) return;
  const MonotonicTime changed_at = std::clamp(reading.changed_at, worker.since, now);
  // The first rise on the way from another phase into this one is a step read from a checkpoint.
  const bool has_risen = reading.step > worker.last.step;
  const bool has_finished =
      has_risen && (worker.has_risen || worker.last.phase == kStep || !is_other_phase);
  worker.has_risen |= has_risen;
  if (has_finished) {
    if (worker.is_sample_good && worker.last.phase == kStep && !is_other_phase &&
        worker.finished >= kFirstSteps) {
      const double steps =
          static_cast<double>(reading.step) - static_cast<double>(worker.last.step);
      Learn(local_rank, kStep, (changed_at - worker.since) / steps);
    }
    ++worker.finished;
  }
  if (is_other_phase && worker.last.phase != kStep && !after_gap) {
    Learn(local_rank, worker.last.phase, changed_at - worker.since);
  }
  worker.is_sample_good = has_finished && !is_other_phase;
  if (reading.step != worker.last.step) {
    if (!has_finished) worker.recent.clear();
    worker.recent.emplace_back(changed_at, reading.step);
    while (worker.recent.size() > 2 && (worker.recent.size() > kSamplesMax ||
                                        worker.recent.front().first < now - kRateWindow)) {
      worker.recent.pop_front();
    }
  }
  worker.since = changed_at;
  worker.last = reading;
}

void HangDetector::Learn(int local_rank, const std::string& phase, absl::Duration duration) {
  auto& phases = learnt_[local_rank];
  const bool is_known = phase == kStep || phase == kCheckpoint || phases.count(phase) > 0;
  if (phases.size() >= kPhasesMax && !is_known) return;
  Learnt& learnt = phases[phase];
  ++learnt.count;
  learnt.durations.push_back(duration);
  if (learnt.durations.size() > kSamplesMax) learnt.durations.pop_front();
}

std::string HangDetector::EndedText(MonotonicTime now) const {
  std::vector<std::string> texts;
  for (const auto& [local_rank, end] : ended_) {
    if (texts.size() == kGroupsShown) {
      texts.push_back("...");
      break;
    }
    texts.push_back(
        absl::StrCat("rank ", first_global_rank_ + local_rank, " (",
                     end.step.has_value() ? absl::StrCat("after step ", *end.step, ", ") : "",
                     Text(now - end.at), " ago)"));
  }
  return absl::StrJoin(texts, ", ");
}

void HangDetector::NoteNews(MonotonicTime now) {
  const bool is_end_old = std::any_of(ended_.begin(), ended_.end(), [now](const auto& entry) {
    return now - entry.second.at >= kEndPatience;
  });
  const bool do_others_go_on =
      !workers_.empty() && std::all_of(workers_.begin(), workers_.end(), [now](const auto& entry) {
        return now - entry.second.since < kEndPatience;
      });
  if (is_end_old && !do_others_go_on && !std::exchange(has_told_of_end_, true)) {
    news_ = absl::StrCat("ended with 0: ", EndedText(now),
                         "; other workers of this node still run: where they wait for it in a "
                         "collective, they wait for ever");
    return;  // The other news has time.
  }
  if (has_had_news_ || !limits_.automatic || limits_.step > absl::ZeroDuration()) return;
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.last.phase != kStep) continue;
    const Limit limit = AutomaticLimit(local_rank, worker);
    if (limit.duration == absl::InfiniteDuration()) continue;
    has_had_news_ = true;
    news_ = absl::StrCat("hang detection: a step of rank ", first_global_rank_ + local_rank,
                         " has a limit from now on (", limit.why, ")");
    return;
  }
}

absl::Duration HangDetector::GivenLimit(const Worker& worker) const {
  return worker.finished == 0               ? limits_.startup
         : worker.last.phase == kStep       ? limits_.step
         : worker.last.phase == kCheckpoint ? limits_.checkpoint
                                            : absl::ZeroDuration();
}

HangDetector::Limit HangDetector::LimitOf(int local_rank, const Worker& worker) const {
  const absl::Duration given = GivenLimit(worker);
  if (given > absl::ZeroDuration()) return {given, absl::StrCat("limit ", Text(given))};
  if (!limits_.automatic) return Limit();
  Limit limit = AutomaticLimit(local_rank, worker);
  return limit.duration == absl::InfiniteDuration() ? UnseenLimit(local_rank, worker) : limit;
}

const HangDetector::Learnt* HangDetector::LearntOf(int local_rank, const Worker& worker) const {
  const auto of_rank = learnt_.find(local_rank);
  if (of_rank == learnt_.end()) return nullptr;
  const auto found = of_rank->second.find(worker.last.phase);
  return found == of_rank->second.end() ? nullptr : &found->second;
}

// The limit when too little is known of the worker's phase.
HangDetector::Limit HangDetector::UnseenLimit(int local_rank, const Worker& worker) const {
  absl::Duration duration = kUnseen;
  if (const Learnt* learnt = LearntOf(local_rank, worker)) {
    duration = std::max(duration, kTimesLongestStay * LongestOf(learnt->durations));
  }
  return {duration,
          absl::StrCat("limit ", Text(duration), ", automatic: not seen often enough yet")};
}

HangDetector::Limit HangDetector::AutomaticLimit(int local_rank, const Worker& worker) const {
  const Learnt* learnt = LearntOf(local_rank, worker);
  const bool is_step = worker.last.phase == kStep;
  if (learnt == nullptr || worker.finished < kFirstSteps ||
      learnt->count < (is_step ? kStepsNeeded : kStaysNeeded)) {
    return Limit();
  }
  const absl::Duration floor = !is_step                        ? kStayFloor
                               : worker.last.tells_every_phase ? kShortFloor
                                                               : kLongFloor;
  const int times_longest = is_step ? kTimesLongestStep : kTimesLongestStay;
  const absl::Duration longest = LongestOf(learnt->durations);
  Limit limit = {floor, "automatic: the shortest limit"};
  if (const absl::Duration median = MedianOf(learnt->durations);
      is_step && kTimesMedian * median > limit.duration) {
    limit = {kTimesMedian * median,
             absl::StrCat("automatic: ", kTimesMedian, " x the median ", Text(median))};
  }
  if (times_longest * longest > limit.duration) {
    limit = {times_longest * longest,
             absl::StrCat("automatic: ", times_longest, " x the longest ", Text(longest))};
  }
  limit.why = absl::StrCat("limit ", Text(limit.duration), ", ", limit.why);
  return limit;
}

absl::Duration HangDetector::Silence(const Worker& worker, MonotonicTime now) const {
  const bool since_start = worker.finished == 0 && limits_.startup > absl::ZeroDuration();
  return now - (since_start ? started_ : worker.since);
}

bool HangDetector::MayWaitElsewhere(const Worker& worker, bool all_alike) const {
  const bool are_others_elsewhere = world_size_ > static_cast<int>(workers_.size());
  if (!are_others_elsewhere || worker.stopped_since.has_value()) return false;
  if (!worker.last.tells_awaited) return all_alike;
  return worker.last.awaited_rank >= 0 &&
         workers_.count(worker.last.awaited_rank - first_global_rank_) == 0;
}

bool HangDetector::IsOverdue(int local_rank, const Worker& worker, bool all_alike,
                             MonotonicTime now) const {
  absl::Duration limit = LimitOf(local_rank, worker).duration;
  if (limit == absl::InfiniteDuration()) return false;
  if (MayWaitElsewhere(worker, all_alike)) {
    // A worker that tells for whom it waits is not to blame itself.
    const bool is_told = worker.last.tells_awaited;
    limit += (is_told ? kNeighbourPatience : std::min(limit / 10, kNeighbourPatience)) +
             2 * look_interval_;
  }
  return Silence(worker, now) > limit;
}

bool HangDetector::WaitsElsewhere(int local_rank) const {
  // Workers that wait for each other in a circle lead nowhere.
  for (size_t passed = 0; passed <= workers_.size(); ++passed) {
    const auto found = workers_.find(local_rank);
    if (found == workers_.end()) return true;
    if (found->second.last.awaited_rank < 0) return false;
    local_rank = found->second.last.awaited_rank - first_global_rank_;
  }
  return false;
}

std::string HangDetector::AwaitedText() const {
  std::map<std::string, std::vector<int>> waits;
  for (const auto& [local_rank, worker] : workers_) {
    if (worker.last.awaited_rank < 0 || worker.stopped_since.has_value()) continue;
    waits[worker.last.awaits].push_back(first_global_rank_ + local_rank);
  }
  std::string text;
  size_t shown = 0;
  for (const auto& [what, ranks] : waits) {
    if (shown++ == kWaitsShown) break;
    absl::StrAppend(&text, "; ", RanksText(ranks), ": ", what);
  }
  return text;
}

std::string HangDetector::PlacesText(int blamed) const {
  std::map<std::pair<int64_t, std::string>, std::vector<int>> places;
  for (const auto& [local_rank, other] : workers_) {
    if (local_rank == blamed) continue;
    places[{other.last.step, other.last.phase}].push_back(first_global_rank_ + local_rank);
  }
  std::vector<std::string> texts;
  for (const auto& [place, ranks] : places) {
    texts.push_back(
        absl::StrCat(RanksText(ranks), " at step ", place.first, " (", place.second, ")"));
    if (texts.size() == kGroupsShown) break;
  }
  return absl::StrJoin(texts, ", ");
}

// The wire cuts a long text off: the words by which the daemon judges (incident.cc) come first, and
// the waits last.
std::string HangDetector::Why(const std::vector<int>& local_ranks, bool all_alike,
                              MonotonicTime now) const {
  const int blamed = local_ranks.front();
  const Worker& worker = workers_.at(blamed);
  const bool in_step = worker.last.phase == kStep;
  const bool is_by_state =
      worker.stopped_since.has_value() && !IsOverdue(blamed, worker, all_alike, now);
  std::string why = absl::StrCat(
      "hang: ",
      worker.finished == 0 ? "no first step"
      : in_step            ? "no step"
                           : "no change",
      " for ", Text(Silence(worker, now)), " (",
      is_by_state ? absl::StrCat("limit ", Text(StoppedLimit()), ", of a stopped process")
                  : LimitOf(blamed, worker).why,
      "), phase ", worker.last.phase, ", step ", worker.last.step);
  if (worker.stopped_since.has_value()) {
    absl::StrAppend(&why, "; its process has been stopped by a signal (state T) for ",
                    Text(now - *worker.stopped_since));
    if (workers_.size() == 1) return why;
  }
  const bool is_stopped = worker.stopped_since.has_value();
  const bool tells = worker.last.tells_awaited;
  if (tells && worker.last.awaited_rank < 0 && !is_stopped && world_size_ > 1) {
    why += "; it waits for no other rank";
  }
  if (all_alike) {
    if (world_size_ == 1) return why;
    absl::StrAppend(&why, "; ",
                    workers_.size() == 1
                        ? "it is the only worker here that tells its progress"
                        : absl::StrCat("all ", workers_.size(),
                                       " workers here that tell their progress stand there"));
  }
  if (!ended_.empty()) {
    absl::StrAppend(&why, "; ended with 0: ", EndedText(now), ": the others may wait for it");
  } else if (!is_stopped && (tells ? WaitsElsewhere(blamed) : all_alike)) {
    why += "; it may wait for another rank";
  }
  if (!all_alike) absl::StrAppend(&why, "; the others here: ", PlacesText(blamed));
  return why + AwaitedText();
}

std::optional<rendezvous::WorkerProgress> HangDetector::Progress(MonotonicTime now) const {
  if (workers_.empty()) return std::nullopt;
  const auto place = [](const auto& entry) {
    return std::tie(entry.second.last.step, entry.second.since);
  };
  const Worker& slowest =
      std::min_element(workers_.begin(), workers_.end(), [&](const auto& a, const auto& b) {
        return place(a) < place(b);
      })->second;
  rendezvous::WorkerProgress progress = {.step = slowest.last.step, .phase = slowest.last.phase};
  const auto& [first_time, first_step] = slowest.recent.front();
  const auto& [last_time, last_step] = slowest.recent.back();
  if (last_step > first_step && last_time > first_time) {
    const absl::Duration seen = last_time - first_time;
    // A worker that stands still counts as slower than before.
    const absl::Duration over = now - last_time > seen ? now - first_time : seen;
    progress.steps_per_second =
        static_cast<double>(last_step - first_step) / absl::ToDoubleSeconds(over);
  }
  return progress;
}

}  // namespace convene::agent
