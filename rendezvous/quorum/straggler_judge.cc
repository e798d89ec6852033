#include "rendezvous/quorum/straggler_judge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::rendezvous {
namespace {

constexpr int64_t kWarmUpSteps = 10;
constexpr int kWindowSteps = 20;
constexpr int kMostSteps = 1 << 20;  // of a report: the number is from the wire
constexpr size_t kLeastReports = 3;
constexpr int64_t kPersistsSteps = 8;
constexpr double kSlower = 0.15;
constexpr double kSlowerThanBefore = 0.2;
constexpr double kLinkSlower = 0.3;
constexpr double kErrors = 4;
constexpr double kDeviations = 3;
constexpr size_t kEnoughForDeviation = 4;
// The standard deviation of a normal distribution from its MAD; a median's standard error from that
// of a mean.
constexpr double kDeviationOfMad = 1.4826;
constexpr double kErrorOfMedian = 1.2533;
constexpr size_t kSavesKept = 5;
constexpr size_t kSavesNeeded = 3;
constexpr double kSlowSave = 2;
constexpr double kLeastSaveMs = 1000;

// The lower one of two middle values, so that one of two ranks is the measure of the other.
double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Pauses of a single step, which every program has, show in less than half of the values.
double LowerThirdOf(std::vector<double> values) {
  const auto third = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 3);
  std::nth_element(values.begin(), third, values.end());
  return *third;
}

double MadOf(const std::vector<double>& values, double median) {
  std::vector<double> deviations;
  for (const double value : values) deviations.push_back(std::abs(value - median));
  return MedianOf(std::move(deviations));
}

template <typename List, typename Of>
std::vector<double> Values(const List& list, const Of& of) {
  std::vector<double> values;
  for (const auto& item : list) values.push_back(of(item));
  return values;
}

}  // namespace

const char* StragglerWord(StragglerKind kind) {
  constexpr const char* kWords[] = {"rank", "node", "link", "disk"};
  static_assert(std::size(kWords) == static_cast<size_t>(StragglerKind::kDisk) + 1);
  return kWords[static_cast<size_t>(kind)];
}

void StragglerJudge::BeginEpoch(int world_size) {
  world_size_ = world_size;
  ranks_.clear();
  link_ = {};
  found_.clear();
  stragglers_.clear();
}

void StragglerJudge::Hear(int global_rank, int64_t node, const RankProgress& report) {
  Rank& rank = ranks_[global_rank];
  rank.node = node;
  rank.place = report.place;
  if (rank.first_step < 0 || report.step < rank.step) rank.first_step = report.step;
  const bool is_new = report.steps > 0 && report.step > rank.step;
  rank.step = report.step;
  const bool tells_times = report.compute_ms > 0 || report.wait_ms > 0;
  if (!is_new || !tells_times || report.step - rank.first_step <= kWarmUpSteps) return;
  has_news_ = true;
  AddSample(rank, report);
}

void StragglerJudge::AddSample(Rank& rank, const RankProgress& report) {
  const int steps = std::min(report.steps, kMostSteps);
  rank.samples.push_back({steps, {report.compute_ms, report.wait_ms, report.data_ms}});
  rank.window_steps += steps;
  if (report.checkpoint_ms > 0) {
    rank.saves.push_back(report.checkpoint_ms * report.steps);
    if (rank.saves.size() > kSavesKept) rank.saves.pop_front();
  }
  while (rank.samples.size() > kLeastReports &&
         rank.window_steps - rank.samples.front().steps >= kWindowSteps) {
    rank.window_steps -= rank.samples.front().steps;
    rank.samples.pop_front();
  }
  if (rank.samples.size() < kLeastReports || rank.window_steps < kWindowSteps) return;
  Figures figures;
  const double root = std::sqrt(static_cast<double>(rank.samples.size()));
  for (double Figures::*const of : {&Figures::compute, &Figures::wait, &Figures::data}) {
    const std::vector<double> values =
        Values(rank.samples, [of](const Sample& sample) { return sample.figures.*of; });
    figures.*of = LowerThirdOf(values);
    rank.error.*of = kErrorOfMedian * kDeviationOfMad * MadOf(values, figures.*of) / root;
  }
  rank.now = figures;
  if (!rank.first.has_value()) rank.first = figures;
}

void StragglerJudge::Weigh(Suspicion& suspicion, int64_t step, const Excess& excess,
                           MonotonicTime now) {
  const auto holds_since = [step](bool holds, int64_t& since) {
    if (!holds) since = -1;
    if (holds && since < 0) since = step;
    return holds && step - since >= kPersistsSteps;
  };
  const bool is_over = holds_since(excess.ms > excess.limit, suspicion.over_since);
  const bool is_under = holds_since(excess.ms < excess.limit / 2, suspicion.under_since);
  if (is_over && !suspicion.is_found) suspicion.since = now;
  if (is_over) suspicion.is_found = true;
  if (is_under) suspicion.is_found = false;
  if (excess.ms <= excess.limit) return;
  suspicion.slower_by = excess.slower_by;
  suspicion.why = excess.why();
}

// `ranks` are two or more.
void StragglerJudge::JudgePlace(const std::vector<int>& ranks, MonotonicTime now) {
  const auto values = [&](double Figures::*of) {
    return Values(ranks, [&](int rank) { return (*ranks_.at(rank).now).*of; });
  };
  const double compute = MedianOf(values(&Figures::compute));
  const double data = MedianOf(values(&Figures::data));
  const double own = compute + data;
  // Where most ranks tell waits alone, nobody's usual work is known.
  const double least = own > 0 ? kSlower * own : std::numeric_limits<double>::infinity();
  // Of all ranks of the place, once: there may be tens of thousands.
  const auto spread = [&](double Figures::*of, double median) {
    if (ranks.size() < kEnoughForDeviation) return 0.0;
    return kDeviations * kDeviationOfMad * MadOf(values(of), median);
  };
  const double spread_of_compute = spread(&Figures::compute, compute);
  const double spread_of_data = spread(&Figures::data, data);
  const std::string like = ranks.size() == 2 ? "the other rank" : "the median rank";
  for (const int number : ranks) {
    Rank& rank = ranks_.at(number);
    Weigh(rank.slow, rank.step,
          {.ms = rank.now->compute - compute,
           .limit = std::max({least, kErrors * rank.error.compute, spread_of_compute}),
           .slower_by = (rank.now->compute - compute) / own,
           .why =
               [&] {
                 return absl::StrFormat("it works %.3g ms a step, %s of its place %.3g ms",
                                        rank.now->compute, like, compute);
               }},
          now);
    Weigh(rank.loads, rank.step,
          {.ms = rank.now->data - data,
           .limit = std::max({least, kErrors * rank.error.data, spread_of_data}),
           .slower_by = (rank.now->data - data) / own,
           .why =
               [&] {
                 return absl::StrFormat(
                     "it waits %.3g ms a step for its samples, %s of its place %.3g ms",
                     rank.now->data, like, data);
               }},
          now);
  }
}

StragglerJudge::Figures StragglerJudge::Growth() const {
  std::vector<double> factors;
  std::vector<double> waits;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.now.has_value() || rank.first->own() <= 0) continue;
    factors.push_back(rank.now->own() / rank.first->own());
    waits.push_back(rank.now->wait - rank.first->wait);
  }
  if (factors.empty()) return {.compute = 1};
  return {.compute = MedianOf(std::move(factors)), .wait = MedianOf(std::move(waits))};
}

void StragglerJudge::JudgeLonely(int number, const Figures& growth, MonotonicTime now) {
  Rank& rank = ranks_.at(number);
  const auto excess = [&](double Figures::*of, const char* what) {
    const double before = (*rank.first).*of * growth.compute;
    const double ms = (*rank.now).*of - before;
    // The others wait for it: else it would wait with them.
    const bool is_waited_for = rank.now->wait - rank.first->wait < growth.wait - ms / 2;
    const double own = rank.first->own() * growth.compute;
    return Excess{
        .ms = is_waited_for ? ms : 0,
        .limit = std::max(kSlowerThanBefore * own, kErrors * rank.error.*of),
        .slower_by = own > 0 ? ms / own : 0,
        .why = [what, takes = (*rank.now).*of, before] {
          return absl::StrFormat(
              "%s %.3g ms a step, at the epoch's beginning %.3g ms; the others wait for it", what,
              takes, before);
        }};
  };
  Weigh(rank.slow, rank.step, excess(&Figures::compute, "it works"), now);
  Weigh(rank.loads, rank.step, excess(&Figures::data, "it waits for its samples"), now);
}

// Saves are rare, so the last few are compared, of all ranks that have made them.
void StragglerJudge::JudgeSaves(MonotonicTime now) {
  std::map<int, double> medians;
  for (const auto& [number, rank] : ranks_) {
    if (rank.saves.size() < kSavesNeeded) continue;
    medians[number] = MedianOf({rank.saves.end() - kSavesNeeded, rank.saves.end()});
  }
  if (medians.size() < 2) return;
  const double typical = MedianOf(Values(medians, [](const auto& entry) { return entry.second; }));
  for (const auto& [number, median] : medians) {
    Rank& rank = ranks_.at(number);
    Weigh(rank.saving, rank.step,
          {.ms = median - typical,
           .limit = std::max((kSlowSave - 1) * typical, kLeastSaveMs),
           .slower_by = typical > 0 ? median / typical - 1 : 1,
           .why =
               [median = median, typical] {
                 return absl::StrFormat("its saves take %.3g s, the median rank's %.3g s",
                                        median / 1000, typical / 1000);
               }},
          now);
  }
}

// The slowest rank of a step waits for the network alone, so the least wait of all ranks is the
// network's. Where one rank's wait has grown by twice as much as the median rank's, the link is
// its.
void StragglerJudge::JudgeLink(MonotonicTime now) {
  std::vector<double> own;
  Figures least_now = {.wait = HUGE_VAL};
  Figures least_first = least_now;
  int64_t step = 0;
  int worst = -1;
  double worst_growth = 0;
  double error = 0;
  bool is_anyone_slow = false;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.now.has_value()) return;
    own.push_back(rank.now->own());
    step = std::max(step, rank.step);
    is_anyone_slow |= rank.slow.is_found || rank.loads.is_found;
    if (rank.now->wait < least_now.wait)
      std::tie(least_now.wait, error) = std::pair(rank.now->wait, rank.error.wait);
    least_first.wait = std::min(least_first.wait, rank.first->wait);
    const double growth = rank.now->wait - rank.first->wait;
    if (growth > worst_growth) std::tie(worst, worst_growth) = std::pair(number, growth);
  }
  if (static_cast<int>(ranks_.size()) != world_size_ || world_size_ < 2) return;
  const double typical = MedianOf(std::move(own));
  const Figures growth = Growth();
  const double more = least_now.wait - least_first.wait * std::max(1.0, growth.compute);
  // Its name stays as long as it is found: another rank at each look would be news each time.
  if (!link_.is_found) link_rank_ = worst_growth > 2 * growth.wait ? worst : -1;
  Weigh(link_, step,
        {.ms = is_anyone_slow ? 0 : more,
         .limit = std::max(kLinkSlower * typical, kErrors * error),
         .slower_by = typical > 0 ? more / typical : 0,
         .why =
             [&] {
               return absl::StrFormat(
                   "every rank waits %.3g ms a step or more, at the epoch's beginning %.3g ms, and "
                   "none is slow at its own work of %.3g ms",
                   least_now.wait, least_first.wait, typical);
             }},
        now);
}

std::map<StragglerJudge::Key, Straggler> StragglerJudge::Found() const {
  std::map<Key, Straggler> found;
  std::map<int64_t, std::pair<int, int>> slow_of_node;  // slow ones, and all
  const auto add = [&](StragglerKind kind, int number, int64_t node, const Suspicion& suspicion) {
    if (!suspicion.is_found) return;
    found[{kind, node, number}] = {kind,          number,         node, suspicion.slower_by,
                                   suspicion.why, suspicion.since};
  };
  for (const auto& [number, rank] : ranks_) {
    auto& [slow, all] = slow_of_node[rank.node];
    slow += rank.slow.is_found ? 1 : 0;
    ++all;
    add(StragglerKind::kRank, number, rank.node, rank.slow);
    add(StragglerKind::kDisk, number, rank.node, rank.loads.is_found ? rank.loads : rank.saving);
  }
  if (link_.is_found) {
    add(StragglerKind::kLink, link_rank_, link_rank_ < 0 ? 0 : ranks_.at(link_rank_).node, link_);
  }
  for (const auto& [node, counts] : slow_of_node) {
    if (counts.second < 2 || counts.first < counts.second) continue;
    std::optional<Straggler> whole;
    for (auto entry = found.begin(); entry != found.end();) {
      const bool is_its = entry->second.node == node && entry->second.kind == StragglerKind::kRank;
      if (is_its && !whole.has_value()) whole = entry->second;
      entry = is_its ? found.erase(entry) : std::next(entry);
    }
    whole->kind = StragglerKind::kNode;
    whole->why =
        absl::StrCat("all its ", counts.second, " ranks are slow; of the first: ", whole->why);
    found[{StragglerKind::kNode, node, whole->rank}] = *whole;
  }
  return found;
}

std::vector<StragglerJudge::Change> StragglerJudge::Judge(MonotonicTime now) {
  if (!has_news_ || now - judged_ < absl::Seconds(1)) return {};
  has_news_ = false;
  judged_ = now;
  std::map<int, std::vector<int>> places;
  for (const auto& [number, rank] : ranks_) {
    if (rank.now.has_value()) places[rank.place].push_back(number);
  }
  const Figures growth = Growth();
  for (const auto& [place, ranks] : places) {
    if (ranks.size() >= 2) {
      JudgePlace(ranks, now);
    } else {
      JudgeLonely(ranks.front(), growth, now);
    }
  }
  JudgeSaves(now);
  JudgeLink(now);

  std::vector<Change> changes;
  std::map<Key, Straggler> found = Found();
  for (const auto& [key, straggler] : found_) {
    if (found.count(key) == 0) changes.push_back({false, straggler});
  }
  for (const auto& [key, straggler] : found) {
    if (found_.count(key) == 0) changes.push_back({true, straggler});
  }
  found_ = std::move(found);
  stragglers_.clear();
  for (const auto& [key, straggler] : found_) stragglers_.push_back(straggler);
  std::stable_sort(stragglers_.begin(), stragglers_.end(),
                   [](const auto& a, const auto& b) { return a.slower_by > b.slower_by; });
  if (stragglers_.size() > kMostStragglers) stragglers_.resize(kMostStragglers);
  return changes;
}

}  // namespace convene::rendezvous
