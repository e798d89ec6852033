#include "worker_runtime/planner/search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker_runtime/comm/nccl/buffers.h"
#include "worker_runtime/model/parameters.h"

namespace convene::worker {
namespace {

// A GPU's share of a row is at least so many tokens: shorter pieces leave attention too little.
constexpr int64_t kRowTokensMin = 1024;
constexpr int kContextMax = 32;
constexpr int kMicroBatchMax = 32;
constexpr int kVirtualStages[] = {1, 2, 3, 4, 5, 6, 8, 10};
// A layout has to be so much faster for each doubling of the ranks that hold one replica of the
// model: a lost rank takes the replica with it, and stages and slices are never quite even. Shards
// cost less: they only need each other at a step's ends.
constexpr double kDoublingPrice = 0.02;
constexpr double kShardPrice = 0.002;

// From what costs nothing to what frees the most.
const Recompute kRecomputes[] = {
    Recompute::kNone, Recompute::kSelective,
    Recompute{.norms = true, .swiglu = true, .attention = true, .mlp = true}, Recompute::kFull};

std::vector<int> Divisors(int number, int most) {
  std::vector<int> divisors;
  for (int i = 1; i <= std::min(number, most); ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

// Sizes of arrays are int: a step's tokens on one rank, and the numbers of a micro batch's rows
// (ValidateStepTokens and ValidateMicroBatch, options.cc).
bool FitsArrays(const PlanJob& job, const Strategy& strategy) {
  constexpr double kLargestProduct = 1 << 30;
  const double length = static_cast<double>(job.sequence_length);
  if (length * job.global_batch_size / strategy.layout.dp >= kLargestProduct) return false;
  const double hidden = 1.0 * job.model.hidden_size / strategy.layout.cp;
  return MicroBatchesOf(job, strategy).size * length * hidden < kLargestProduct;
}

bool Allows(const std::optional<int>& wish, int value) {
  return !wish.has_value() || *wish == value;
}

MemoryParts MemoryOf(const PlanJob& job, const Cluster& cluster, const Strategy& strategy,
                     ModelCounts& counts) {
  MemoryParts memory = LargestMemory(job, strategy, counts);
  if (!cluster.gpu.is_cpu) memory.nccl = static_cast<double>(NcclBufferBytes(strategy.layout));
  return memory;
}

// Walks over the strategies of a cluster. A wish is tried wherever it is legal; other degrees are
// tried where they are worth it.
class Searcher {
 public:
  Searcher(const PlanJob& job, const Cluster& cluster, const Wishes& wishes,
           const Efficiency& efficiency)
      : job_(job),
        cluster_(cluster),
        wishes_(wishes),
        virtual_stages_(std::begin(kVirtualStages), std::end(kVirtualStages)),
        counts_(job_.model),
        timer_(job_, cluster_, efficiency, counts_) {
    plans_.rungs.resize(kRungs);
    if (wishes.virtual_stages.has_value()) virtual_stages_ = {*wishes.virtual_stages};
  }

  void Run() {
    const int most_tp = wishes_.tp.has_value() ? cluster_.gpus : cluster_.gpu.domain;
    for (const int tp : Divisors(cluster_.gpus, most_tp)) {
      if (!Allows(wishes_.tp, tp)) continue;
      for (const int pp : Divisors(cluster_.gpus / tp, job_.model.layers + 2)) {
        if (!Allows(wishes_.pp, pp)) continue;
        const int ranks = cluster_.gpus / tp / pp;
        for (const int cp : Divisors(ranks, wishes_.cp.has_value() ? ranks : kContextMax)) {
          if (!Allows(wishes_.cp, cp)) continue;
          const bool is_short = cp > 1 && job_.sequence_length / cp < kRowTokensMin;
          if (is_short && !wishes_.cp.has_value()) continue;
          ForExperts({.pp = pp, .dp = cluster_.gpus / tp / pp / cp, .tp = tp, .cp = cp});
        }
      }
    }
  }

  Plans Take(size_t keep) {
    for (auto& [key, estimate] : best_) plans_.ranked.push_back(std::move(estimate));
    std::sort(plans_.ranked.begin(), plans_.ranked.end(),
              [](const Estimate& a, const Estimate& b) { return Score(a) < Score(b); });
    if (plans_.ranked.size() > keep) plans_.ranked.resize(keep);
    return std::move(plans_);
  }

 private:
  using Key = std::tuple<int, int, int, int, bool>;

  void ForExperts(Layout layout) {
    for (const int ep : Divisors(std::max(1, job_.model.experts.count), layout.gradient_ranks())) {
      if (!Allows(wishes_.ep, ep)) continue;
      layout.ep = ep;
      for (const int copies : Divisors(layout.dp, layout.dp)) {
        if (!Allows(wishes_.dp_replicate, copies)) continue;
        layout.dp_replicate = copies;
        if (!layout.has_legal_ep() || !IsUsefulCut(layout)) continue;
        ForStages(layout);
      }
    }
  }

  // Shards are whole domains, or all or none: other cuts lose on both sides.
  bool IsUsefulCut(const Layout& layout) const {
    if (wishes_.dp_replicate.has_value()) return true;
    if (layout.dp_replicate == 1 || layout.dp_shard() == 1) return true;
    const int spanned = layout.tp * layout.cp * layout.dp_shard();
    return spanned % cluster_.gpu.domain == 0 || cluster_.gpu.domain % spanned == 0;
  }

  bool TriesZero(const Layout& layout, int stage) const {
    // A lonely data-parallel rank is a whole copy and a shard at once.
    if (layout.dp == 1 && wishes_.zero_stage.has_value()) return stage == *wishes_.zero_stage;
    if (!Allows(wishes_.zero_stage, stage)) return false;
    // Nothing is to be shared: the trainer's default serves.
    if (layout.gradient_ranks() == 1) return stage == 1;
    const bool is_whole = layout.dp > 1 && layout.dp_shard() == 1;
    return is_whole == (stage == 0);
  }

  void ForStages(const Layout& layout) {
    for (int stage = 0; stage <= 3; ++stage) {
      if (!TriesZero(layout, stage)) continue;
      for (const int chunks : virtual_stages_) {
        if (chunks > 1 && layout.pp == 1) break;
        Strategy strategy = {.layout = layout, .zero_stage = stage, .virtual_stages = chunks};
        if (Allows(wishes_.zero_bubble, false)) ForMicroBatches(strategy);
        strategy.zero_bubble = layout.pp > 1 && chunks == 1;
        if (strategy.zero_bubble && Allows(wishes_.zero_bubble, true)) ForMicroBatches(strategy);
      }
    }
  }

  void ForMicroBatches(Strategy strategy) {
    if (!Legal(job_, strategy, counts_)) return;
    const int64_t samples = (job_.global_batch_size + strategy.layout.dp - 1) / strategy.layout.dp;
    const int first = wishes_.micro_batch_size.value_or(1);
    const int most = wishes_.micro_batch_size.value_or(kMicroBatchMax);
    for (int micro = first; micro <= std::min<int64_t>(samples, most); micro *= 2) {
      strategy.micro_batch_size = micro;
      if (!FitsArrays(job_, strategy)) return;
      // With fewer its bubble is no smaller than that of 1f1b.
      if (strategy.zero_bubble && MicroBatchesOf(job_, strategy).count < strategy.layout.pp) return;
      ForRecomputes(strategy);
    }
  }

  void ForRecomputes(Strategy strategy) {
    for (const Recompute& recompute : kRecomputes) {
      ++plans_.tried;
      strategy.recompute = wishes_.recompute.value_or(recompute);
      // More recomputation is slower than the least that fits.
      if (Consider(strategy) || wishes_.recompute.has_value()) return;
    }
  }

  // Whether it fits.
  bool Consider(const Strategy& strategy) {
    Estimate estimate = {.strategy = strategy,
                         .memory = MemoryOf(job_, cluster_, strategy, counts_)};
    RungResult& rung = plans_.rungs[static_cast<size_t>(RungOf(strategy))];
    if (!rung.leanest.has_value() || estimate.memory.Total() < rung.leanest->memory.Total()) {
      rung.leanest = estimate;
    }
    if (estimate.memory.Total() > UsableBytes(estimate.memory, cluster_)) return false;
    estimate.time = timer_.Time(strategy);
    if (!rung.best.has_value() || Score(estimate) < Score(*rung.best)) rung.best = estimate;
    const Layout& layout = strategy.layout;
    const Key key = {layout.pp, layout.tp, layout.cp, layout.ep, strategy.zero_stage == 3};
    const auto [found, is_new] = best_.try_emplace(key, estimate);
    if (!is_new && Score(estimate) < Score(found->second)) found->second = std::move(estimate);
    return true;
  }

  const PlanJob& job_;
  const Cluster& cluster_;
  const Wishes& wishes_;
  std::vector<int> virtual_stages_;  // that are tried
  ModelCounts counts_;
  StepTimer timer_;
  Plans plans_;
  std::map<Key, Estimate> best_;
};

bool HasWholeFloat8Widths(const PlanJob& job, const Layout& layout) {
  const ModelConfig& model = job.model;
  const int64_t heads = model.heads / layout.tp;
  const int64_t kv_heads = std::max(1, model.kv_heads / layout.tp);
  const int64_t widths[] = {model.hidden_size, heads * model.head_size,
                            (heads + 2 * kv_heads) * model.head_size, model.ffn_size / layout.tp,
                            job.sequence_length / layout.cp};
  return std::all_of(std::begin(widths), std::end(widths),
                     [](int64_t width) { return width % 16 == 0; });
}

}  // namespace

double UsableBytes(const MemoryParts& memory, const Cluster& cluster) {
  constexpr double kWithNccl = 0.97;
  const double has = cluster.gpu.memory_bytes;
  return std::min(kUsableShare * has, kWithNccl * has - memory.nccl);
}

double Score(const Estimate& estimate) {
  const Layout& layout = estimate.strategy.layout;
  const double doublings = std::log2(layout.tp * layout.pp) + std::log2(layout.cp * layout.ep);
  return estimate.time.total *
         (1 + kDoublingPrice * doublings + kShardPrice * estimate.strategy.zero_stage);
}

Rung RungOf(const Strategy& strategy) {
  const Layout& layout = strategy.layout;
  if (layout.tp > 1 && layout.pp > 1) return Rung::kTensorPipeline;
  if (layout.pp > 1) return Rung::kPipeline;
  if (layout.tp > 1) return Rung::kTensor;
  if (layout.ep > 1) return Rung::kExperts;
  if (layout.gradient_ranks() == 1) return Rung::kCopies;
  // Context-parallel ranks cut the optimizer's state with whole copies, too.
  return static_cast<Rung>(layout.cp > 1 ? std::max(1, strategy.zero_stage) : strategy.zero_stage);
}

bool Legal(const PlanJob& job, const Strategy& strategy, ModelCounts& counts) {
  const Layout& layout = strategy.layout;
  if (layout.dp > job.global_batch_size || !layout.has_legal_ep()) return false;
  if (!FitsArrays(job, strategy)) return false;
  if (!ValidateModel(job.model, layout).ok()) return false;
  const bool by_heads = std::max(1, job.model.kv_heads / layout.tp) % layout.cp == 0 &&
                        job.model.heads / layout.tp % layout.cp == 0;
  const int64_t pieces = layout.cp == 1 ? 1 : by_heads ? layout.cp : 2 * int64_t{layout.cp};
  if (job.sequence_length % pieces != 0) return false;
  if (job.float8 && !HasWholeFloat8Widths(job, layout)) return false;
  if (int64_t{layout.pp} * strategy.virtual_stages > job.model.layers + 2) return false;
  return !counts.Stages(layout.pp, strategy.virtual_stages).ranks.empty();
}

Estimate EstimateOf(const PlanJob& job, const Cluster& cluster, const Strategy& strategy,
                    ModelCounts& counts, const Efficiency& efficiency) {
  StepTimer timer(job, cluster, efficiency, counts);
  return {strategy, MemoryOf(job, cluster, strategy, counts), timer.Time(strategy)};
}

namespace {

// Of the wishes each without which some layout is legal: "--tp-size 3".
std::vector<std::string> WishesInTheWay(const PlanJob& job, const Cluster& cluster,
                                        const Wishes& wishes, const Efficiency& efficiency) {
  constexpr std::pair<const char*, std::optional<int> Wishes::*> kDegrees[] = {
      {"--tp-size ", &Wishes::tp},
      {"--pp-size ", &Wishes::pp},
      {"--cp-size ", &Wishes::cp},
      {"--ep-size ", &Wishes::ep},
      {"--dp-replicate-size ", &Wishes::dp_replicate},
      {"--zero-stage ", &Wishes::zero_stage},
      {"--micro-batch-size ", &Wishes::micro_batch_size},
      {"--pp-virtual-stages ", &Wishes::virtual_stages}};
  std::vector<std::string> names;
  const auto try_without = [&](const auto& wish, absl::string_view flag, const auto& value) {
    if (!(wishes.*wish).has_value()) return;
    Wishes freed = wishes;
    (freed.*wish).reset();
    Searcher searcher(job, cluster, freed, efficiency);
    searcher.Run();
    if (searcher.Take(0).tried > 0) names.push_back(absl::StrCat(flag, value));
  };
  for (const auto& [flag, degree] : kDegrees) {
    try_without(degree, flag, (wishes.*degree).value_or(0));
  }
  try_without(&Wishes::zero_bubble, "--zero-bubble ", wishes.zero_bubble == true ? "yes" : "no");
  return names;
}

}  // namespace

absl::StatusOr<Plans> Search(const PlanJob& job, const Cluster& cluster, const Wishes& wishes,
                             size_t keep, const Efficiency& efficiency) {
  if (job.float8 && cluster.gpu.fp8 == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision fp8 needs a GPU with 8-bit products, and ", cluster.gpu.name,
                     " has none; choose --precision bf16"));
  }
  Searcher searcher(job, cluster, wishes, efficiency);
  searcher.Run();
  Plans plans = searcher.Take(keep);
  if (plans.tried > 0) return plans;
  const auto names = WishesInTheWay(job, cluster, wishes, efficiency);
  const std::string in_the_way =
      names.empty()
          ? ""
          : absl::StrCat("Without ", absl::StrJoin(names, ", or without "), " some are. ");
  return absl::InvalidArgumentError(absl::StrCat(
      "no layout of ", cluster.gpus, cluster.gpus == 1 ? " GPU" : " GPUs",
      " is legal for this model, batch and sequence. ", in_the_way,
      "tp divides heads, ffn and vocabulary; each data-parallel rank takes at least one of the ",
      job.global_batch_size,
      " samples of a step; a micro batch's rows have fewer than 2^30 numbers",
      wishes.zero_bubble == true
          ? "; zb-h1 takes two stages or more, and at least as many micro batches"
          : "",
      ". Give another number of GPUs, a larger --global-batch-size, or fewer fixed degrees"));
}

}  // namespace convene::worker
