#include "worker_runtime/planner/step_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker_runtime/planner/collectives.h"
#include "worker_runtime/planner/memory.h"

namespace convene::worker {
namespace {

// A flash attention's backward pass makes the scores again: 5 products for the forward's 2.
constexpr double kAttentionBackward = 2.5;
// Bytes of a score that goes through memory: written, read by softmax, written, read.
constexpr double kScoreBytes = 12;
// Numbers of the residual stream that a forward pass reads or writes for each hidden element: two
// norms, two sums with their branches, transposes. The backward pass takes twice as many.
constexpr double kResidualPasses = 12;
// The trainer cuts rows into chunks, and sums them beside products, from here on
// (parallel/chunked_rows.h).
constexpr double kRowsOfChunks = 4096;
// Of a pass the share that a data-parallel collective can run beside: the first unit has no product
// before it, and the last one none behind it.
constexpr double kHideable = 0.9;
// Sums over tp are small and stay in a domain: they take half of what others take from products.
constexpr double kTensorCost = 0.5;
// Of a message between stages: what the next pass of the rank does not hide.
constexpr double kMessageExposed = 0.3;
// Bytes that AdamW reads and writes for a parameter: gradient, master and two moments in fp32, and
// the new weight.
constexpr double kUpdateBytes = 34;
// As BucketCountMin: 40 million elements, or a million a rank.
constexpr double kBucketElements = 40e6;
constexpr double kBucketElementsOfRank = 1e6;

double SplitRows(const PlanJob& job, const Strategy& strategy) {
  return strategy.layout.tp > 1 && job.splits_rows ? strategy.layout.tp : 1;
}

// The cost of `seconds` of collectives beside `beside` seconds of arithmetic.
struct Hidden {
  double exposed;
  double slowed;
  double Sum() const { return exposed + slowed; }
};
Hidden Hide(double seconds, double beside, double cost) {
  const double hidden = std::min(seconds, kHideable * beside);
  return {seconds - hidden, hidden * cost};
}

}  // namespace

// A CPU has no launches and no power limit. Its ranks send with the threads that compute.
Efficiency EfficiencyOf(const Gpu& gpu) {
  if (!gpu.is_cpu) return {};
  return {.product_share = 1,
          .attention_share = 0.5,
          .memory_share = 1,
          .half_rows = 20,
          .half_width = 50,
          .half_head = 16,
          .tp_overlap = 0,
          .collective_cost = 1,
          .pass_seconds = 5e-6,
          .straggling = 0.02,
          .step_seconds = 1e-3};
}

double BubblePasses(const Strategy& strategy, double microbatches) {
  const double ranks = strategy.layout.pp;
  // Where a round has fewer micro batches than ranks, each rank waits for the first one to come
  // round, before each of its chunks but one.
  const double waiting = std::max(0.0, ranks - microbatches);
  return ranks - 1 + (strategy.virtual_stages - 1) * waiting;
}

void StepTimer::Pass::Add(const Pass& other, double times) {
  products += times * other.products;
  attention += times * other.attention;
  passes += times * other.passes;
  tp += times * other.tp;
  cp += times * other.cp;
  ep += times * other.ep;
}

StepTimer::StepTimer(const PlanJob& job, const Cluster& cluster, const Efficiency& efficiency,
                     ModelCounts& counts)
    : job_(job), cluster_(cluster), efficiency_(efficiency), counts_(counts) {
  for (int layer = 0; layer < job.model.layers; ++layer) {
    mean_keys_ += MeanKeys(job.model, layer, job.sequence_length) / job.model.layers;
  }
}

double StepTimer::ProductSeconds(double multiplied, double rows, double width,
                                 bool is_float8) const {
  const Gpu& gpu = cluster_.gpu;
  const double share = is_float8 ? efficiency_.float8_share : efficiency_.product_share;
  const double peak = is_float8 ? gpu.fp8 : SizeOf(job_.dtype) == 4 ? gpu.fp32 : gpu.bf16;
  const double slowing = 1 + efficiency_.half_rows / rows + efficiency_.half_width / width;
  return 2 * rows * multiplied * slowing / (share * gpu.sustained * peak);
}

StepTimer::Passes StepTimer::BlockPasses(const Strategy& strategy, double rows,
                                         bool has_experts) const {
  const ModelConfig& model = job_.model;
  const Layout& layout = strategy.layout;
  const UnitCount& unit = has_experts ? units_->expert : units_->dense;
  const double tp = layout.tp;
  const double element = static_cast<double>(SizeOf(job_.dtype));
  const double hidden = model.hidden_size;
  const double inputs = ActivationInputs(model.family->activation);
  const double heads = model.heads / tp;
  const double value_size = model.value_size > 0 ? model.value_size : model.head_size;
  Passes passes;
  Pass& forward = passes.forward;
  const double width = unit.multiplied / hidden / 4;
  forward.products = ProductSeconds(unit.multiplied, rows, width, job_.float8);
  const double peak = element == 4 ? cluster_.gpu.fp32 : cluster_.gpu.bf16;
  const double slowing = 1 + efficiency_.half_head / model.head_size;
  forward.attention = slowing * rows * 2 * heads * (model.head_size + value_size) * mean_keys_ /
                      (efficiency_.attention_share * cluster_.gpu.sustained * peak);
  const double memory = efficiency_.memory_share * cluster_.gpu.memory_bandwidth;
  const double ffn = (has_experts ? model.experts.shared_ffn_size : model.ffn_size) / tp;
  const double qkv = (heads + 2 * std::max(1.0, model.kv_heads / tp)) * model.head_size;
  double numbers =
      kResidualPasses * hidden / SplitRows(job_, strategy) + 2 * qkv + (inputs + 1) * ffn;
  double bytes = numbers * element;
  // Each factor of a product is read once more, and written as it is and turned round.
  if (job_.float8) bytes += (element + 2) * (2 * hidden + heads * value_size + ffn);
  if (!efficiency_.fused_attention) bytes += kScoreBytes * heads * 2 * mean_keys_;
  forward.passes = rows * bytes / memory + efficiency_.pass_seconds;
  // Each weight's gradient is a product as large as the forward's. Products of experts wait for no
  // half.
  passes.weights = forward.products;
  if (has_experts) {
    const ExpertConfig& experts = model.experts;
    const double of_expert = rows * layout.ep * experts.chosen / experts.count;
    const double expert_ffn = experts.ffn_size / tp;
    forward.products += ProductSeconds(unit.expert_multiplied, rows, expert_ffn, job_.float8) *
                        (1 + efficiency_.half_rows / of_expert) / efficiency_.expert_share;
    forward.passes +=
        rows * experts.chosen * (4 * hidden + (inputs + 1) * expert_ffn) * element / memory +
        4 * efficiency_.pass_seconds;
  }
  passes.backward = {.products = 2 * forward.products,
                     .attention = kAttentionBackward * forward.attention,
                     .passes = 2 * forward.passes};
  // A half more to launch.
  if (strategy.zero_bubble) passes.backward.passes += efficiency_.pass_seconds;
  AddTensorParallel(strategy, rows, passes);
  AddContextParallel(strategy, rows, passes);
  if (has_experts) AddExperts(strategy, rows, passes);
  AddRecompute(strategy, passes);
  return passes;
}

// Two gathers and two sums of (rows, hidden) in each direction.
void StepTimer::AddTensorParallel(const Strategy& strategy, double rows, Passes& passes) const {
  const int tp = strategy.layout.tp;
  if (tp == 1) return;
  const double bytes = rows * job_.model.hidden_size * static_cast<double>(SizeOf(job_.dtype));
  const double seconds = 4 * GatherSeconds(cluster_, GroupIn(cluster_, 1, tp), bytes);
  const bool is_chunked = rows >= kRowsOfChunks && (!job_.float8 || efficiency_.overlaps_float8);
  const double overlap = is_chunked ? efficiency_.tp_overlap : 0;
  passes.forward.tp = passes.backward.tp =
      seconds * (1 - overlap + overlap * kTensorCost * efficiency_.collective_cost);
}

// Ulysses where kv heads come out even, else a ring beside the attention.
void StepTimer::AddContextParallel(const Strategy& strategy, double rows, Passes& passes) const {
  const Layout& layout = strategy.layout;
  if (layout.cp == 1) return;
  const ModelConfig& model = job_.model;
  const double element = static_cast<double>(SizeOf(job_.dtype));
  const double kv_heads = std::max(1.0, static_cast<double>(model.kv_heads) / layout.tp);
  const double keys = 2 * kv_heads * model.head_size;
  const double queries = static_cast<double>(model.heads) / layout.tp * model.head_size;
  const RankGroup group = GroupIn(cluster_, layout.tp, layout.cp);
  if (std::fmod(kv_heads, layout.cp) == 0) {
    const double seconds = AllToAllSeconds(cluster_, group, rows * (queries + keys) * element) +
                           AllToAllSeconds(cluster_, group, rows * queries * element);
    passes.forward.cp = passes.backward.cp = seconds;
    return;
  }
  const Link& link = SlowestLink(cluster_, group);
  const auto ring = [&](double bytes, double beside) {
    const double seconds = (layout.cp - 1) * MessageSeconds(link, bytes);
    return Hide(seconds, beside, efficiency_.collective_cost).Sum();
  };
  passes.forward.cp = ring(rows * keys * element, passes.forward.attention);
  passes.backward.cp = ring(rows * keys * (element + 4), passes.backward.attention);
}

// To the experts and back, in each direction; nothing runs beside.
void StepTimer::AddExperts(const Strategy& strategy, double rows, Passes& passes) const {
  const Layout& layout = strategy.layout;
  if (layout.ep == 1) return;
  const double bytes = rows * job_.model.experts.chosen * job_.model.hidden_size *
                       static_cast<double>(SizeOf(job_.dtype));
  const RankGroup group = GroupIn(cluster_, layout.tp, layout.ep);
  const double domains = static_cast<double>(group.ranks) / group.in_domain;
  const double copies = job_.model.experts.chosen;
  // Of `copies` experts at random in so many domains, these have one at least. A router of groups
  // keeps a token to some of the domains.
  const ExpertConfig& experts = job_.model.experts;
  const double reached =
      experts.groups > 1 ? std::min<double>(domains, experts.chosen_groups) : domains;
  const double met = reached * (1 - std::pow(1 - 1 / reached, copies));
  const double once = efficiency_.sends_tokens_once ? met / copies : 1;
  passes.forward.ep = passes.backward.ep = 2 * AllToAllSeconds(cluster_, group, bytes, once);
}

// The parts of a forward pass that the backward pass makes again.
void StepTimer::AddRecompute(const Strategy& strategy, Passes& passes) const {
  const Recompute& again = strategy.recompute;
  const Pass& forward = passes.forward;
  Pass& more = passes.recomputed;
  more.products = RecomputedShare(job_.model, again) * forward.products;
  if (again.attention) {
    more.attention = forward.attention;
    more.cp = forward.cp;
  }
  more.passes = forward.passes *
                ((again.norms ? 0.25 : 0) + (again.swiglu ? 0.25 : 0) + (again.middle ? 0.5 : 0));
  if (again.norms && SplitRows(job_, strategy) > 1) more.tp += forward.tp / 2;
  if (again.middle) more.tp += forward.tp / 4;
  if (again.mlp) more.ep = forward.ep / 2;
}

// The head's gradients come within its forward pass; in bf16 or fp32.
StepTimer::Pass StepTimer::HeadPass(const Strategy& strategy, double rows) const {
  const double columns = static_cast<double>(job_.model.vocabulary_size) / strategy.layout.tp;
  const double element = static_cast<double>(SizeOf(job_.dtype));
  const double memory = efficiency_.memory_share * cluster_.gpu.memory_bandwidth;
  Pass pass;
  pass.products = 3 * ProductSeconds(units_->head.multiplied, rows, columns, false);
  pass.passes = rows * columns * element * 5 / memory;
  return pass;
}

// One store of parameters that `shards` ranks share, in `copies` copies.
void StepTimer::AddStore(const Strategy& strategy, double parameters, double blocks, int shards,
                         int copies, int stride, StoreTraffic& store) const {
  if (parameters == 0) return;
  const double element = static_cast<double>(SizeOf(job_.dtype));
  const double reduced = static_cast<double>(SizeOf(job_.reduce_dtype));
  const RankGroup of_shards = GroupIn(cluster_, stride, shards);
  const RankGroup of_copies = GroupIn(cluster_, stride * shards, copies);
  const double bucket = efficiency_.bucket_elements > 0
                            ? efficiency_.bucket_elements
                            : std::max(kBucketElements, kBucketElementsOfRank * shards * copies);
  const double pieces =
      strategy.zero_stage >= 2 ? std::max(1.0, blocks) : std::ceil(parameters / bucket);
  const double own = parameters / shards;
  store.scatter += pieces * GatherSeconds(cluster_, of_shards, parameters * reduced / pieces);
  store.scatter += pieces * AllReduceSeconds(cluster_, of_copies, own * reduced / pieces);
  const double calls = strategy.zero_stage < 3 && !efficiency_.hides_gathers ? 1 : pieces;
  store.gather += calls * GatherSeconds(cluster_, of_shards, parameters * element / calls);
  const double passed = parameters * (shards - 1) / shards;
  store.bytes_gather += passed * element;
  store.bytes_scatter += (passed + 2 * own * (copies - 1) / copies) * reduced;
  store.owned += own;
  for (const RankGroup& group : {of_shards, of_copies}) {
    if (group.ranks == 1) continue;
    if (store.link.empty() || group.crosses_domains()) {
      store.link = SlowestLink(cluster_, group).name;
    }
  }
}

void StepTimer::AddDataParallel(const Strategy& strategy, double microbatches, const Stage& stage,
                                StepTime& time) const {
  const Layout& layout = strategy.layout;
  const RankCount rank = ModelCounts::Sum(*stage.chunks, *units_);
  StoreTraffic store;
  AddStore(strategy, rank.whole, rank.layers, layout.dp_shard() * layout.cp, layout.dp_replicate,
           layout.tp, store);
  AddStore(strategy, rank.experts, rank.layers, layout.expert_shards(),
           layout.expert_gradient_ranks() / layout.expert_shards(), layout.tp * layout.ep, store);
  const double memory = efficiency_.memory_share * cluster_.gpu.memory_bandwidth;
  // The norm of all gradients is one number, which goes up and down a tree.
  const double tree = 2 * std::log2(cluster_.gpus) * cluster_.network.latency;
  time.optimizer = store.owned * kUpdateBytes / memory + tree;
  if (layout.gradient_ranks() == 1) return;

  // ZeRO-3 gathers before each forward and each backward pass, the others once a step.
  const bool gathers_always = strategy.zero_stage >= 3;
  const double scatters = strategy.zero_stage >= 2 ? microbatches : 1;
  const double fetches = gathers_always ? microbatches : 1;
  const double cost = efficiency_.collective_cost;
  const bool hides_fetch = gathers_always || efficiency_.hides_gathers;
  const Hidden fetch = Hide(store.gather, hides_fetch ? stage.forward : 0, cost);
  const Hidden reduce =
      Hide(store.scatter + (gathers_always ? store.gather : 0), stage.backward, cost);
  const double gathers = gathers_always ? 2 * fetches : 1;
  time.communication += fetches * fetch.Sum() + scatters * reduce.Sum();
  time.axes.push_back({.axis = "dp",
                       .link = store.link,
                       .bytes = gathers * store.bytes_gather + scatters * store.bytes_scatter,
                       .seconds = gathers * store.gather + scatters * store.scatter,
                       .exposed = fetches * fetch.exposed + scatters * reduce.exposed});
}

// Messages between stages, and the bubble.
void StepTimer::AddPipeline(const Strategy& strategy, double microbatches, double rows,
                            const Stage& stage, StepTime& time) const {
  const Layout& layout = strategy.layout;
  if (layout.pp == 1) return;
  const double bytes = rows / SplitRows(job_, strategy) * job_.model.hidden_size *
                       static_cast<double>(SizeOf(job_.dtype));
  const int stride = layout.world_size() / layout.pp;
  const Link& link = SlowestLink(cluster_, GroupIn(cluster_, stride, layout.pp));
  const double message = MessageSeconds(link, bytes);
  const double messages = 2 * microbatches * strategy.virtual_stages;
  time.axes.push_back({.axis = "pp",
                       .link = link.name,
                       .bytes = messages * bytes,
                       .seconds = messages * message,
                       .exposed = kMessageExposed * messages * message});
  time.communication += time.axes.back().exposed;
  double one = (stage.forward + stage.backward) / strategy.virtual_stages;
  // F + I - W, the row of zb-h1 in schedule/generators.h.
  if (strategy.zero_bubble && microbatches >= layout.pp) one -= 2 * stage.weights;
  time.bubble = BubblePasses(strategy, microbatches) * (one + 2 * message);
}

// Messages of tp, cp and ep ranks for the blocks of a stage. The seconds of cp and ep are exposed
// ones where nothing hides them.
void StepTimer::AddBlockAxes(const Strategy& strategy, double microbatches, double rows,
                             const Stage& stage, StepTime& time) const {
  const Layout& layout = strategy.layout;
  const RankCount rank = ModelCounts::Sum(*stage.chunks, *units_);
  const double row_bytes = rows * static_cast<double>(SizeOf(job_.dtype));
  const auto add = [&](const char* axis, int stride, int ranks, double bytes, double exposed) {
    const RankGroup group = GroupIn(cluster_, stride, ranks);
    const double wire = bytes / BusBandwidth(cluster_, group);
    time.axes.push_back(
        {axis, SlowestLink(cluster_, group).name, bytes, std::max(wire, exposed), exposed});
  };
  const double passes = microbatches * rank.layers;
  if (layout.tp > 1) {
    add("tp", 1, layout.tp,
        8 * passes * row_bytes * job_.model.hidden_size * (layout.tp - 1) / layout.tp,
        microbatches * (stage.pass.tp + stage.again.tp));
  }
  if (layout.cp > 1) {
    const double keys = 2.0 * std::max(1, job_.model.kv_heads / layout.tp) * job_.model.head_size;
    add("cp", layout.tp, layout.cp, 3 * passes * (layout.cp - 1) * row_bytes * keys,
        microbatches * (stage.pass.cp + stage.again.cp));
  }
  if (layout.ep > 1) {
    add("ep", layout.tp, layout.ep,
        4 * microbatches * rank.expert_layers * row_bytes * job_.model.experts.chosen *
            job_.model.hidden_size * (layout.ep - 1) / layout.ep,
        microbatches * (stage.pass.ep + stage.again.ep));
  }
}

// The slowest stage sets the pace.
StepTimer::Stage StepTimer::SlowestStage(const Strategy& strategy, double rows) const {
  const Passes dense = BlockPasses(strategy, rows, false);
  const Passes expert = job_.model.experts.count > 0 ? BlockPasses(strategy, rows, true) : Passes();
  const Pass head = HeadPass(strategy, rows);
  const StageCounts& stages = counts_.Stages(strategy.layout.pp, strategy.virtual_stages);
  Stage slowest;
  for (const int rank : stages.distinct) {
    Pass ahead, back, more;
    double weights = 0;
    for (const ChunkCount& chunk : stages.ranks[rank]) {
      for (const auto& [passes, count] :
           {std::pair(&dense, chunk.dense), std::pair(&expert, chunk.expert)}) {
        ahead.Add(passes->forward, count);
        back.Add(passes->backward, count);
        more.Add(passes->recomputed, count);
        weights += count * passes->weights;
      }
      if (chunk.has_head) ahead.Add(head, 1);
    }
    const Stage stage = {.chunks = &stages.ranks[rank],
                         .forward = ahead.Seconds(),
                         .backward = back.Seconds() + more.Seconds(),
                         .weights = weights,
                         .pass = ahead,
                         .again = more};
    if (stage.forward + stage.backward <= slowest.forward + slowest.backward) continue;
    slowest = stage;
    slowest.pass.Add(back, 1);
  }
  return slowest;
}

StepTime StepTimer::Time(const Strategy& strategy) {
  const Layout& layout = strategy.layout;
  units_ = &counts_.Of(layout.tp, layout.ep);
  const MicroBatches micro = MicroBatchesOf(job_, strategy);
  const double count = static_cast<double>(micro.count);
  const double rows =
      static_cast<double>(micro.size) * static_cast<double>(job_.sequence_length) / layout.cp;
  const Stage stage = SlowestStage(strategy, rows);
  const Pass& pass = stage.pass;
  const Pass& again = stage.again;
  StepTime time;
  time.products = count * pass.products;
  time.attention = count * pass.attention;
  time.passes = count * pass.passes + efficiency_.step_seconds;
  time.recomputed = count * (again.products + again.attention + again.passes);
  time.communication = count * (pass.tp + again.tp + pass.cp + again.cp + pass.ep + again.ep);
  AddBlockAxes(strategy, count, rows, stage, time);
  AddPipeline(strategy, count, rows, stage, time);
  AddDataParallel(strategy, count, stage, time);
  const double sum = time.products + time.attention + time.passes + time.recomputed +
                     time.communication + time.bubble + time.optimizer;
  time.stragglers = sum * efficiency_.straggling * std::log2(cluster_.gpus);
  time.total = sum + time.stragglers;
  return time;
}

}  // namespace convene::worker
