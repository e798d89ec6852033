#include "worker_runtime/planner/explain.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/text.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/collectives.h"
#include "worker_runtime/planner/memory.h"

namespace convene::worker {
namespace {

// The way of training on each rung.
constexpr const char* kRungWords[] = {
    "DDP: each GPU holds everything",
    "ZeRO-1: ranks share the optimizer state",
    "ZeRO-2: ranks share the gradients, too",
    "ZeRO-3: ranks share the parameters, too",
    "ep: ranks share the experts",
    "tp: the GPUs of a domain cut each layer",
    "pp: stages of several GPUs cut the model between layers",
    "tp and pp: both cuts",
};

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

std::string Seconds(double seconds) {
  return seconds < 1 ? absl::StrFormat("%.0f ms", 1000 * seconds)
                     : absl::StrFormat("%.2f s", seconds);
}

const AxisTraffic* Axis(const Estimate& estimate, const std::string& name) {
  for (const AxisTraffic& axis : estimate.time.axes) {
    if (axis.axis == name) return &axis;
  }
  return nullptr;
}

// Bytes of a GPU. Muon keeps less state than AdamW, but needs room for whole matrices.
double SavedByMuon(const PlanJob& job, const Strategy& strategy) {
  if (job.optimizer_states < 2) return 0;
  PlanJob muon = job;
  muon.optimizer_states = 1;
  muon.whole_matrices = true;
  ModelCounts counts(job.model);
  return LargestMemory(job, strategy, counts).Total() -
         LargestMemory(muon, strategy, counts).Total();
}

// Whether GPUs hold some part of the state that others hold, too, however many there are.
bool KeepsCopies(const Strategy& strategy) {
  const Layout& layout = strategy.layout;
  return layout.dp_replicate > 1 || (strategy.zero_stage < 3 && layout.dp * layout.cp > 1);
}

// "12 % slower", "as fast".
std::string Against(double seconds, double chosen) {
  const double more = seconds / chosen - 1;
  if (std::abs(more) < 0.005) return "as fast as the choice";
  return absl::StrCat(Percent(std::abs(more)), more > 0 ? " slower" : " faster",
                      " than the choice");
}

}  // namespace

std::string RecomputeText(const Recompute& recompute) {
  if (recompute == Recompute::kNone) return "none";
  if (recompute == Recompute::kSelective) return "selective";
  if (recompute == Recompute::kFull) return "full";
  std::vector<std::string> parts;
  for (const auto& [is_on, name] :
       {std::pair(recompute.norms, "norms"), std::pair(recompute.swiglu, "swiglu"),
        std::pair(recompute.attention, "attention"), std::pair(recompute.mlp, "mlp")}) {
    if (is_on) parts.emplace_back(name);
  }
  return absl::StrJoin(parts, ",");
}

absl::StatusOr<Recompute> ParseRecompute(absl::string_view text) {
  if (text == "none") return Recompute::kNone;
  if (text == "selective") return Recompute::kSelective;
  if (text == "full") return Recompute::kFull;
  Recompute recompute;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    if (part == "norms") {
      recompute.norms = true;
    } else if (part == "swiglu") {
      recompute.swiglu = true;
    } else if (part == "attention") {
      recompute.attention = true;
    } else if (part == "mlp") {
      recompute.swiglu = recompute.mlp = true;
    } else {
      return absl::InvalidArgumentError(
          "it can be none, selective, full, or some of norms, swiglu, attention and mlp, with "
          "commas between them");
    }
  }
  return recompute;
}

const char* ScheduleName(const Strategy& strategy) {
  if (strategy.zero_bubble) return "zb-h1";
  return strategy.virtual_stages > 1 ? "interleaved" : "1f1b";
}

std::string StrategyText(const Strategy& strategy) {
  std::string text = absl::StrCat(strategy.layout.ToString(), ", ZeRO-", strategy.zero_stage,
                                  ", micro batch ", strategy.micro_batch_size);
  if (strategy.layout.pp > 1) {
    absl::StrAppend(&text, ", ", ScheduleName(strategy));
    if (strategy.virtual_stages > 1) {
      absl::StrAppend(&text, " with ", strategy.virtual_stages, " chunks a stage");
    }
  }
  return absl::StrCat(text, ", recompute ", RecomputeText(strategy.recompute));
}

std::vector<std::string> Strengths(const PlanJob& job, const Cluster& cluster,
                                   const Estimate& estimate) {
  const Strategy& strategy = estimate.strategy;
  const Layout& layout = strategy.layout;
  std::vector<std::string> words;
  if (layout.tp > 1 && !GroupIn(cluster, 1, layout.tp).crosses_domains()) {
    words.push_back(absl::StrCat("tp ", layout.tp, " stays inside a domain of ", cluster.gpu.domain,
                                 " GPUs, on ", cluster.gpu.link.name, "."));
  }
  if (const AxisTraffic* pp = Axis(estimate, "pp"); pp != nullptr) {
    words.push_back(
        absl::StrFormat("Between %d stages only activations travel: %s a step of a GPU.", layout.pp,
                        HumanBytes(pp->bytes)));
  }
  if (strategy.zero_bubble) {
    words.emplace_back("Products for gradients of weights fill a part of the pipeline's bubble.");
  }
  if (const AxisTraffic* dp = Axis(estimate, "dp");
      dp != nullptr && dp->exposed < 0.1 * dp->seconds) {
    words.push_back(absl::StrCat("Sums of gradients and gathers of weights (", Seconds(dp->seconds),
                                 ") run beside the arithmetic."));
  }
  if (strategy.zero_stage > 0 && layout.gradient_ranks() > 1) {
    constexpr const char* kShared[] = {"optimizer state", "optimizer state and gradients",
                                       "optimizer state, gradients and parameters"};
    words.push_back(absl::StrCat("ZeRO-", strategy.zero_stage, " shares ",
                                 kShared[strategy.zero_stage - 1], " over ",
                                 layout.dp_shard() * layout.cp, " ranks."));
  }
  if (layout.ep > 1) {
    words.push_back(absl::StrCat("ep ", layout.ep, " keeps ", job.model.experts.count / layout.ep,
                                 " of ", job.model.experts.count, " experts on a GPU."));
  }
  if (strategy.recompute == Recompute::kNone) {
    words.push_back("All activations fit, so nothing is computed twice.");
  }
  return words;
}

std::vector<std::string> Limits(const PlanJob& job, const Cluster& cluster,
                                const Estimate& estimate) {
  const StepTime& time = estimate.time;
  std::vector<std::pair<double, std::string>> costs;
  for (const AxisTraffic& axis : time.axes) {
    costs.emplace_back(axis.exposed, absl::StrCat("traffic of ", axis.axis, " on ", axis.link));
  }
  costs.emplace_back(
      time.bubble,
      absl::StrCat("the pipeline's bubble (", MicroBatchesOf(job, estimate.strategy).count,
                   " micro batches, ", estimate.strategy.layout.pp, " stages)"));
  costs.emplace_back(time.recomputed, "activations that are computed again");
  costs.emplace_back(time.passes, "passes over activations, bound by memory");
  costs.emplace_back(time.stragglers, "the slowest of all GPUs");
  costs.emplace_back(time.optimizer, "the optimizer's update");
  std::sort(costs.begin(), costs.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  for (size_t i = 0; i < 2 && costs[i].first > 0.02 * time.total; ++i) {
    words.push_back(
        absl::StrCat(Percent(costs[i].first / time.total), " of a step: ", costs[i].second, "."));
  }
  const double share = estimate.memory.Total() / cluster.gpu.memory_bytes;
  if (share > 0.8) {
    const bool is_least = estimate.strategy.recompute == Recompute::kNone;
    words.push_back(absl::StrCat(Percent(share), " of the memory: a larger micro batch",
                                 is_least ? "" : " or less recomputation", " has no room."));
  }
  return words;
}

std::vector<std::string> Explain(const PlanJob& job, const Cluster& cluster, const Plans& plans) {
  std::vector<std::string> lines;
  const double usable = kUsableShare * cluster.gpu.memory_bytes;
  lines.push_back(absl::StrCat("Parameters, gradients and optimizer state together take ",
                               HumanBytes(UnshardedBytes(job)), ". The GPU, ", cluster.gpu.name,
                               ", has ", HumanBytes(cluster.gpu.memory_bytes),
                               "; the plan may take ", HumanBytes(usable), " of it."));
  const Estimate* chosen = plans.ranked.empty() ? nullptr : &plans.ranked.front();
  for (size_t i = 0; i < plans.rungs.size(); ++i) {
    const RungResult& rung = plans.rungs[i];
    if (!rung.leanest.has_value()) continue;
    std::string line = absl::StrCat(kRungWords[i], ". ");
    if (!rung.best.has_value()) {
      absl::StrAppend(&line, "It does not fit: the leanest layout takes ",
                      HumanBytes(rung.leanest->memory.Total()), " a GPU.");
    } else if (RungOf(chosen->strategy) == static_cast<Rung>(i)) {
      absl::StrAppend(&line, "It fits, and this is the choice: ", Seconds(chosen->step_seconds()),
                      " a step. ", StrategyText(chosen->strategy), ".");
    } else {
      absl::StrAppend(&line, "It fits: ", Seconds(rung.best->step_seconds()), " a step, ",
                      Against(rung.best->step_seconds(), chosen->step_seconds()), ". ",
                      StrategyText(rung.best->strategy), ".");
    }
    lines.push_back(line);
  }
  if (chosen != nullptr) {
    lines.push_back(absl::StrCat(
        "The choice is the layout with the least step time, where each doubling of tp, pp, cp or "
        "ep has to save 2 % of it."));
  }
  return lines;
}

std::vector<std::string> WaysToFit(const PlanJob& job, const Cluster& cluster, const Plans& plans) {
  const Estimate* leanest = nullptr;
  for (const RungResult& rung : plans.rungs) {
    if (rung.leanest.has_value() &&
        (leanest == nullptr || rung.leanest->memory.Total() < leanest->memory.Total())) {
      leanest = &*rung.leanest;
    }
  }
  const MemoryParts& parts = leanest->memory;
  const double usable = UsableBytes(parts, cluster);
  std::vector<std::string> lines;
  lines.push_back(absl::StrCat("The leanest layout, ", StrategyText(leanest->strategy), ", takes ",
                               HumanBytes(parts.Total()), " a GPU. The plan may take ",
                               HumanBytes(usable), "."));
  const double rest = parts.Total() - parts.parameters - parts.gradients - parts.optimizer;
  if (rest < usable) {
    lines.push_back(absl::StrFormat(
        "More GPUs: about %.0f have room for the state, if each keeps its part of it.%s",
        std::ceil(UnshardedBytes(job) / (usable - rest)),
        KeepsCopies(leanest->strategy)
            ? " In this layout GPUs keep copies: leave --zero-stage, --dp-replicate-size, "
              "--tp-size and --pp-size to the plan."
            : ""));
  } else {
    lines.push_back(absl::StrCat("Activations and buffers alone take ", HumanBytes(rest),
                                 ": a shorter --sequence-length, or GPUs with more memory."));
  }
  // The trainer has no --offload for an optimizer that needs whole matrices on the device.
  if (!job.whole_matrices) {
    lines.push_back(
        "The optimizer's state can lie in host memory: convene-train --offload optimizer, "
        "with ZeRO-3 --offload all. The plan does not time this.");
  }
  if (const double saved = SavedByMuon(job, leanest->strategy); saved > 0) {
    lines.push_back(absl::StrCat(
        "An optimizer with one number for each element of the blocks' matrices, --optimizer muon, "
        "takes ",
        HumanBytes(saved), " less in this layout."));
  }
  return lines;
}

}  // namespace convene::worker
