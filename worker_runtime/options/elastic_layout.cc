#include "worker_runtime/options/elastic_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/options/adapter_options.h"
#include "worker_runtime/planner/search.h"

namespace convene::worker {
namespace {

// The axes that one replica of the model lies over; `best` rather keeps the first ones.
struct ModelAxis {
  const char* name;
  int Layout::*degree;
  int TrainOptions::*asked;
  bool is_named_at_1 = true;  // in words, where its degree is 1
};
constexpr ModelAxis kModelAxes[] = {
    {"tp", &Layout::tp, &TrainOptions::tp_size},
    {"pp", &Layout::pp, &TrainOptions::pp_size},
    {"cp", &Layout::cp, &TrainOptions::cp_size, false},
};

// The axes that words about these options name.
std::vector<ModelAxis> NamedAxes(const TrainOptions& options) {
  std::vector<ModelAxis> axes;
  for (const ModelAxis& axis : kModelAxes) {
    if (axis.is_named_at_1 || options.*axis.asked > 1) axes.push_back(axis);
  }
  return axes;
}

// The libraries, the communicators and the rest of the process take memory beside the plan.
constexpr double kUsableShare = 0.9;
// Words about legal values try degrees up to here, and name so many.
constexpr int kDegreesTried = 1024;
constexpr size_t kDegreesNamed = 3;

double ReplicaWorkers(const TrainOptions& options) {
  double workers = 1;
  for (const ModelAxis& axis : kModelAxes) workers *= options.*axis.asked;
  return workers;
}

Layout AskedReplica(const TrainOptions& options) {
  Layout layout;
  for (const ModelAxis& axis : kModelAxes) layout.*axis.degree = options.*axis.asked;
  return layout;
}

// "tp_size 2 x pp_size 2".
std::string ReplicaText(const TrainOptions& options) {
  return absl::StrJoin(NamedAxes(options), " x ", [&](std::string* out, const ModelAxis& axis) {
    absl::StrAppend(out, axis.name, "_size ", options.*axis.asked);
  });
}

// "dp_shard_size 2 x dp_replicate_size 4", or the one of them that was asked for.
std::string CopiesText(const TrainOptions& options) {
  std::vector<std::string> asked;
  if (options.dp_shard_size > 0) {
    asked.push_back(absl::StrCat("dp_shard_size ", options.dp_shard_size));
  }
  if (options.dp_replicate_size > 0) {
    asked.push_back(absl::StrCat("dp_replicate_size ", options.dp_replicate_size));
  }
  return absl::StrJoin(asked, " x ");
}

int64_t RanksOfCopies(const TrainOptions& options) {
  return int64_t{std::max(options.dp_shard_size, 1)} * std::max(options.dp_replicate_size, 1);
}

// The data-parallel ranks that were asked for; 0: as many as there are.
int64_t AskedRows(const TrainOptions& options) {
  if (options.dp_size > 0) return options.dp_size;
  const bool is_whole = options.dp_shard_size > 0 && options.dp_replicate_size > 0;
  return is_whole ? RanksOfCopies(options) : 0;
}

// The shards of each copy that were asked for; 0: as many as come out.
int AskedShards(const TrainOptions& options) {
  if (options.dp_shard_size > 0) return options.dp_shard_size;
  const bool is_whole = options.dp_size > 0 && options.dp_replicate_size > 0;
  return is_whole ? options.dp_size / options.dp_replicate_size : 0;
}

// As many of `rows` data-parallel ranks as make `copies` copies of `shards` shards (0: as many as
// come out). Where there are too few ranks the copies become fewer, then the shards of the last
// one.
Layout Spread(Layout layout, int rows, int shards, int copies) {
  if (shards == 0) {
    layout.dp_replicate = std::clamp(copies, 1, rows);
    layout.dp = rows / layout.dp_replicate * layout.dp_replicate;
    return layout;
  }
  shards = std::min(shards, rows);
  layout.dp_replicate = copies == 0 ? rows / shards : std::min(copies, rows / shards);
  layout.dp = layout.dp_replicate * shards;
  return layout;
}

// Where the layout cannot have the expert-parallel ranks that were asked for, fewer: the job goes
// on.
Layout WithExperts(const TrainOptions& options, Layout layout) {
  const int experts = std::max(1, options.model.experts.count);
  for (layout.ep = std::min(options.ep_size, layout.gradient_ranks()); layout.ep > 1; --layout.ep) {
    if (experts % layout.ep == 0 && layout.has_legal_ep()) break;
  }
  return layout;
}

absl::Status CheckCopies(const TrainOptions& options) {
  const int64_t copies = RanksOfCopies(options);
  const bool is_whole = options.dp_shard_size > 0 && options.dp_replicate_size > 0;
  const bool fits = is_whole ? copies == options.dp_size : options.dp_size % copies == 0;
  if (options.dp_size == 0 || fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(CopiesText(options), " does not fit dp_size ", options.dp_size));
}

// Whether there are workers for a replica and, before the job has begun, for all that was asked
// for.
absl::Status CheckWorkers(const TrainOptions& options, int world_size, bool job_has_begun) {
  CONVENE_RETURN_IF_ERROR(CheckCopies(options));
  const double replica = ReplicaWorkers(options);
  if (replica > world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(ReplicaText(options), " = ", absl::StrFormat("%.0f", replica),
                     " workers hold one replica of the model, and this job has ", world_size));
  }
  if (job_has_begun) return absl::OkStatus();
  if (options.dp_size > 0 && replica * options.dp_size != world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(ReplicaText(options), " x dp_size ", options.dp_size, " = ",
                     absl::StrFormat("%.0f", replica * options.dp_size),
                     " workers, but this job has ", world_size));
  }
  const int rows = world_size / static_cast<int>(replica);
  if (RanksOfCopies(options) <= rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(CopiesText(options), " = ", RanksOfCopies(options),
                                                 " data-parallel ranks, and this job has room for ",
                                                 rows));
}

std::string Text(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

// "8.0 GiB of 10.0 GiB a rank", and likewise on the host where there is any.
std::string RoomText(const RankMemory& planned, const RankMemory& has) {
  std::string text = absl::StrCat(Text(planned.device_bytes), " of ", Text(has.device_bytes));
  if (planned.host_bytes > 0) {
    absl::StrAppend(&text, " and on the host ", Text(planned.host_bytes), " of ",
                    Text(has.host_bytes));
  }
  return absl::StrCat(text, " a rank");
}

// The part of the memory that is taken, of the kind that is scarcer.
double ShareOf(const RankMemory& planned, const RankMemory& has) {
  const auto share = [](int64_t part, int64_t whole) {
    return part == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  return std::max(share(planned.device_bytes, has.device_bytes),
                  share(planned.host_bytes, has.host_bytes));
}

// The layout of `keep`. ValidateOptions' errors are those of the most data-parallel ranks.
absl::StatusOr<Layout> Kept(const TrainOptions& options, int world_size, bool job_has_begun) {
  CONVENE_RETURN_IF_ERROR(CheckWorkers(options, world_size, job_has_begun));
  const Layout replica = AskedReplica(options);
  int rows = world_size / replica.world_size();
  if (options.dp_size > 0) rows = std::min(rows, options.dp_size);
  absl::Status refusal;
  while (rows > 0) {
    Layout layout = Spread(replica, rows, AskedShards(options), options.dp_replicate_size);
    layout.ep = options.ep_size;
    if (job_has_begun) layout = WithExperts(options, layout);
    const absl::Status legal = ValidateOptions(options, layout);
    if (legal.ok()) return layout;
    if (refusal.ok()) refusal = legal;
    // A step has as many micro batches as the file says on some numbers of ranks alone.
    if (!job_has_begun || options.pp_schedule_csv.empty()) break;
    rows = layout.dp - 1;
  }
  return refusal;
}

// "tp_size can be 1 or 2": the numbers, near the one that was asked for, with which one key alone
// makes the number of workers right.
std::string LegalNumbers(const TrainOptions& options, int world_size, bool job_has_begun,
                         const std::string& key, int TrainOptions::*value) {
  const int asked = options.*value;
  TrainOptions changed = options;
  const auto is_legal = [&](int number) {
    changed.*value = number;
    return Kept(changed, world_size, job_has_begun).ok();
  };
  std::vector<int> legal;
  for (int number = 1; number <= std::min(world_size, kDegreesTried); ++number) {
    if (is_legal(number)) legal.push_back(number);
  }
  std::stable_sort(legal.begin(), legal.end(),
                   [&](int a, int b) { return std::abs(a - asked) < std::abs(b - asked); });
  legal.resize(std::min(legal.size(), kDegreesNamed));
  if (!legal.empty()) return absl::StrCat(key, " can be ", absl::StrJoin(legal, " or "));
  const bool is_required = std::any_of(std::begin(kModelAxes), std::end(kModelAxes),
                                       [&](const ModelAxis& axis) { return axis.asked == value; });
  return !is_required && is_legal(0) ? absl::StrCat(key, " can be left out") : "";
}

absl::StatusOr<Layout> Best(const TrainOptions& options, int world_size,
                            const JobHardware* hardware);

// "" where there are workers enough, or the job goes on with those that are left.
std::string MoreWorkers(const TrainOptions& options, int world_size, bool job_has_begun) {
  const double asked = AskedWorkers(options);
  if (job_has_begun || asked <= world_size || asked > kDegreesTried) return "";
  return world_size == 1
             ? absl::StrFormat(
                   "start %.0f workers: `convene run --standalone --nproc-per-node "
                   "%.0f convene-train ...` on one machine",
                   asked, asked)
             : absl::StrFormat("start %.0f workers (`convene run`: --nnodes x --nproc-per-node)",
                               asked);
}

// The refusal with what would be legal instead.
absl::Status WithLegalValues(const absl::Status& refusal, const TrainOptions& options,
                             int world_size, bool job_has_begun) {
  std::vector<std::string> ways;
  if (std::string way = MoreWorkers(options, world_size, job_has_begun); !way.empty()) {
    ways.push_back(std::move(way));
  }
  const auto try_key = [&](const std::string& key, int TrainOptions::*value) {
    if (options.*value == 0) return;
    std::string way = LegalNumbers(options, world_size, job_has_begun, key, value);
    if (!way.empty()) ways.push_back(std::move(way));
  };
  for (const ModelAxis& axis : kModelAxes) try_key(absl::StrCat(axis.name, "_size"), axis.asked);
  if (options.ep_size > 1) try_key("ep_size", &TrainOptions::ep_size);
  try_key("dp_size", &TrainOptions::dp_size);
  try_key("dp_shard_size", &TrainOptions::dp_shard_size);
  try_key("dp_replicate_size", &TrainOptions::dp_replicate_size);
  if (Best(options, world_size, nullptr).ok()) ways.push_back("elastic_layout can be best");
  if (ways.empty()) return refusal;
  return absl::InvalidArgumentError(
      absl::StrCat(refusal.message(), "; ", absl::StrJoin(ways, ", or ")));
}

double Ratio(int a, int b) { return 1.0 * std::max(a, b) / std::min(a, b); }

// Every way to lay replicas over the workers. A micro batch needs a sample, so there are no more
// data-parallel ranks than samples.
void AddCandidates(const TrainOptions& options, int world_size, size_t axis, Layout layout,
                   std::vector<Layout>* candidates) {
  if (axis < std::size(kModelAxes)) {
    for (int degree = 1; layout.world_size() * degree <= world_size; ++degree) {
      Layout with = layout;
      with.*kModelAxes[axis].degree = degree;
      if (!ValidateTrainedModel(options, with).ok()) continue;
      AddCandidates(options, world_size, axis + 1, with, candidates);
    }
    return;
  }
  const int shards = AskedShards(options);
  const int64_t room = world_size / layout.world_size();
  int rows = static_cast<int>(std::clamp<int64_t>(options.global_batch_size, 1, room));
  do {
    candidates->push_back(WithExperts(
        options, Spread(layout, rows, shards, shards > 0 ? 0 : options.dp_replicate_size)));
    rows = candidates->back().dp - 1;
  } while (rows > 0 && !options.pp_schedule_csv.empty());
}

PlanJob JobOf(const TrainOptions& options, const Gpu& gpu) {
  const DType usual = gpu.is_cpu ? DType::kFloat32 : DType::kBFloat16;
  return {.model = options.model,
          .sequence_length = options.sequence_length,
          .global_batch_size = options.global_batch_size,
          .dtype = options.precision.value_or(usual),
          // A CPU multiplies 8-bit floats as it does bf16.
          .float8 = options.float8 && gpu.fp8 > 0,
          .reduce_dtype = options.reduce_dtype,
          .splits_rows = options.sequence_parallel.value_or(true)};
}

// The planner's times of layouts that differ in their degrees alone.
class Judge {
 public:
  Judge(const TrainOptions& options, const Cluster& cluster)
      : options_(options),
        job_(JobOf(options, cluster.gpu)),
        cluster_(cluster),
        counts_(job_.model) {}

  // A step of the fit is a thousandth, so that ranks whose libraries round differently agree.
  // Infinite: the planner has no time for the layout.
  double Steps(const Layout& layout) {
    Strategy strategy = {.layout = layout,
                         .zero_stage = layout.dp_shard() * layout.cp > 1 ? options_.zero_stage : 1,
                         .micro_batch_size = static_cast<int>(std::min<int64_t>(
                             options_.micro_batch_size, std::numeric_limits<int>::max())),
                         .recompute = options_.recompute};
    if (layout.pp > 1 && options_.pp_schedule == "interleaved") {
      strategy.virtual_stages = std::max(2, options_.pp_virtual_stages);
    }
    // zb-v and dualpipe-v have halves as well, and a bubble that is nearly as small.
    constexpr absl::string_view kHalves[] = {"zb-h1", "zb-v", "dualpipe-v"};
    strategy.zero_bubble = layout.pp > 1 && absl::c_linear_search(kHalves, options_.pp_schedule);
    if (!Legal(job_, strategy, counts_)) return std::numeric_limits<double>::infinity();
    cluster_.gpus = layout.world_size();
    const Estimate estimate =
        EstimateOf(job_, cluster_, strategy, counts_, EfficiencyOf(cluster_.gpu));
    constexpr double kStepsOfTwice = 700;
    return std::round(kStepsOfTwice * std::log2(Score(estimate)));
  }

 private:
  const TrainOptions& options_;
  const PlanJob job_;
  Cluster cluster_;
  ModelCounts counts_;
};

// By the rules of `best` but the memory: the lower, the better.
std::vector<double> Order(const TrainOptions& options, const Layout& layout, Judge& judge) {
  std::vector<double> order = {judge.Steps(layout), -1.0 * layout.world_size()};
  for (const ModelAxis& axis : kModelAxes) {
    order.push_back(Ratio(layout.*axis.degree, options.*axis.asked));
  }
  for (const ModelAxis& axis : kModelAxes) order.push_back(layout.*axis.degree);
  return order;
}

absl::StatusOr<Layout> Best(const TrainOptions& options, int world_size,
                            const JobHardware* hardware) {
  CONVENE_RETURN_IF_ERROR(CheckCopies(options));
  std::vector<Layout> candidates;
  AddCandidates(options, world_size, 0, Layout{}, &candidates);
  std::vector<std::pair<std::vector<double>, Layout>> ordered;
  Judge judge(options, hardware == nullptr ? UsualCluster("cpu", 1) : hardware->cluster);
  for (const Layout& layout : candidates) {
    ordered.emplace_back(Order(options, layout, judge), layout);
  }
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::optional<Layout> smallest;  // of the legal ones
  RankMemory smallest_plan;
  for (const auto& [order, layout] : ordered) {
    if (!ValidateOptions(options, layout).ok()) continue;
    if (hardware == nullptr) return layout;
    const RankMemory plan = hardware->planned(layout);
    const double share = ShareOf(plan, hardware->has);
    if (share <= kUsableShare) return layout;
    if (smallest.has_value() && share >= ShareOf(smallest_plan, hardware->has)) continue;
    smallest = layout;
    smallest_plan = plan;
  }
  if (!smallest.has_value()) {
    CONVENE_RETURN_IF_ERROR(Kept(options, world_size, /*job_has_begun=*/true).status());
    return absl::InvalidArgumentError(
        absl::StrCat("no layout of ", world_size, " workers is legal with these options"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "no layout of ", world_size, " workers fits in memory: the one that takes the least is ",
      smallest->ToString(), " with ", RoomText(smallest_plan, hardware->has), ", of which ",
      100 * kUsableShare,
      " % can be planned with; --recompute full, a smaller micro_batch_size or more workers need "
      "less"));
}

// "tp, pp and cp".
std::string AxisNames(const TrainOptions& options) {
  const std::vector<ModelAxis> axes = NamedAxes(options);
  std::string names;
  for (size_t i = 0; i < axes.size(); ++i) {
    const char* const before = i == 0 ? "" : i + 1 < axes.size() ? ", " : " and ";
    absl::StrAppend(&names, before, axes[i].name);
  }
  return names;
}

// "dp4", "dp4 (2 copies of 2 shards)" or "dp_shard_size 2": the part of it that was asked for,
// where the layout has others; else "".
std::string OtherRows(const TrainOptions& options, const Layout& layout) {
  const int64_t rows = AskedRows(options);
  const int shards = AskedShards(options);
  const int copies = options.dp_replicate_size;
  if ((rows == 0 || rows == layout.dp) && (shards == 0 || shards == layout.dp_shard()) &&
      (copies == 0 || copies == layout.dp_replicate)) {
    return "";
  }
  if (rows == 0) return CopiesText(options);
  return absl::StrCat(
      "dp", rows,
      shards == 0 ? "" : absl::StrCat(" (", rows / shards, " copies of ", shards, " shards)"));
}

// The degrees that were asked for, where the layout has others: "dp4", "tp2".
std::vector<std::string> AskedOtherwise(const TrainOptions& options, const Layout& layout) {
  std::vector<std::string> asked;
  const std::string rows = OtherRows(options, layout);
  if (!rows.empty()) asked.push_back(rows);
  for (const ModelAxis& axis : kModelAxes) {
    if (layout.*axis.degree == options.*axis.asked) continue;
    asked.push_back(absl::StrCat(axis.name, options.*axis.asked));
  }
  if (layout.ep != options.ep_size) asked.push_back(absl::StrCat("ep", options.ep_size));
  return asked;
}

std::string Why(const TrainOptions& options, const Layout& layout, int world_size,
                const std::string& rule) {
  const std::vector<std::string> asked = AskedOtherwise(options, layout);
  return absl::StrCat("layout ", layout.ToString(), ": ", layout.world_size(), " of ", world_size,
                      " workers train", asked.empty() ? "" : "; asked ",
                      absl::StrJoin(asked, " x "), "; ", rule);
}

std::string WhyUnlessAsked(const TrainOptions& options, const Layout& layout, int world_size,
                           const std::string& rule) {
  const bool is_asked =
      layout.world_size() == world_size && AskedOtherwise(options, layout).empty();
  return is_asked ? "" : Why(options, layout, world_size, rule);
}

std::string RuleOfKeep(const TrainOptions& options) {
  return absl::StrCat("kept ", AxisNames(options), " (--elastic-layout keep)");
}

std::string RuleOfBest(const TrainOptions& options, const Layout& layout,
                       const JobHardware* hardware) {
  const bool keeps = options.elastic_layout == ElasticLayout::kKeep;
  return absl::StrCat(
      "the least step time that the planner has",
      hardware == nullptr ? " on a usual CPU" : absl::StrCat(" on ", hardware->cluster.gpu.name),
      ", of all legal layouts",
      hardware == nullptr ? ", whatever memory they take (a run asks its own hardware)"
                          : absl::StrCat(" with room for their memory (",
                                         RoomText(hardware->planned(layout), hardware->has), ")"),
      ", then nearest in ", AxisNames(options), " (--elastic-layout ", keeps ? "keep)" : "best)");
}

// The part of a rank's memory that the plan of a kept layout may take, once the job has begun;
// nullopt: its plan is not looked at (elastic_layout.h).
std::optional<double> ShareForKept(const TrainOptions& options, const Layout& layout) {
  if (!OtherRows(options, layout).empty()) return kUsableShare;
  if (AskedRows(options) > 0) return std::nullopt;
  return 1;
}

// "" where the memory has room for a layout that takes the part `share_max` of it.
std::string WhyNoRoom(const Layout& layout, double share_max, const JobHardware& hardware) {
  const RankMemory plan = hardware.planned(layout);
  if (ShareOf(plan, hardware.has) <= share_max) return "";
  return absl::StrCat(
      layout.ToString(), " takes ", RoomText(plan, hardware.has),
      share_max < 1 ? absl::StrCat(", of which ", 100 * share_max, " % can be planned with") : "");
}

absl::StatusOr<LayoutDecision> DecideBest(const TrainOptions& options, int world_size,
                                          bool job_has_begun, const JobHardware* hardware) {
  const absl::StatusOr<Layout> best = Best(options, world_size, hardware);
  if (!best.ok()) {
    // Where the number of workers is not at fault, the refusal itself says all.
    if (CheckCopies(options).ok()) return best.status();
    return WithLegalValues(best.status(), options, world_size, job_has_begun);
  }
  return LayoutDecision{
      .layout = *best,
      .why = WhyUnlessAsked(options, *best, world_size, RuleOfBest(options, *best, hardware)),
      .depends_on_hardware = true};
}

absl::StatusOr<LayoutDecision> DecideKeptAtStart(const TrainOptions& options, int world_size) {
  const absl::StatusOr<Layout> kept = Kept(options, world_size, /*job_has_begun=*/false);
  if (!kept.ok()) {
    if (CheckWorkers(options, world_size, /*job_has_begun=*/false).ok()) return kept.status();
    return WithLegalValues(kept.status(), options, world_size, /*job_has_begun=*/false);
  }
  return LayoutDecision{.layout = *kept,
                        .why = WhyUnlessAsked(options, *kept, world_size, RuleOfKeep(options))};
}

// `keep` of a job that has begun.
absl::StatusOr<LayoutDecision> DecideKept(const TrainOptions& options, int world_size,
                                          const JobHardware* hardware) {
  const absl::StatusOr<Layout> kept = Kept(options, world_size, /*job_has_begun=*/true);
  std::string why_not(kept.status().message());
  LayoutDecision decision;
  if (kept.ok()) {
    const std::optional<double> share = ShareForKept(options, *kept);
    decision = {.layout = *kept,
                .why = WhyUnlessAsked(options, *kept, world_size, RuleOfKeep(options)),
                .depends_on_hardware = share.has_value()};
    if (share.has_value() && hardware != nullptr) why_not = WhyNoRoom(*kept, *share, *hardware);
    if (why_not.empty()) return decision;
  }
  why_not = absl::StrCat(AxisNames(options), " cannot be kept: ", why_not);
  const absl::StatusOr<Layout> best = Best(options, world_size, hardware);
  if (best.ok()) {
    decision.layout = *best;
    decision.why = Why(options, *best, world_size,
                       absl::StrCat(why_not, "; so ", RuleOfBest(options, *best, hardware)));
    decision.depends_on_hardware = true;
    return decision;
  }
  if (kept.ok()) {
    decision.why = Why(options, *kept, world_size,
                       absl::StrCat(RuleOfKeep(options), ", although ", best.status().message()));
    return decision;
  }
  if (absl::IsResourceExhausted(best.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(why_not, "; ", best.status().message()));
  }
  return WithLegalValues(kept.status(), options, world_size, /*job_has_begun=*/true);
}

}  // namespace

double AskedWorkers(const TrainOptions& options) {
  return ReplicaWorkers(options) * std::max(1.0 * RanksOfCopies(options), 1.0 * options.dp_size);
}

absl::StatusOr<LayoutDecision> DecideLayout(const TrainOptions& options, int world_size,
                                            bool job_has_begun, const JobHardware* hardware) {
  if (options.elastic_layout == ElasticLayout::kBest) {
    return DecideBest(options, world_size, job_has_begun, hardware);
  }
  return job_has_begun ? DecideKept(options, world_size, hardware)
                       : DecideKeptAtStart(options, world_size);
}

}  // namespace convene::worker
