#include "worker_runtime/planner/memory.h"

#include <algorithm>
#include <cmath>

#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/ops/kinds.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/shard/buckets.h"
#include "worker_runtime/shard/matrix_memory.h"

namespace convene::worker {
namespace {

// The sizes of a block on one rank, for one micro batch.
struct BlockSizes {
  double rows, own;  // of the tokens, and of the residual stream's
  double hidden, heads, kv_heads, head_size, attention, qkv, ffn, gate_up;
  double expert_rows = 0;  // DispatchShape::bound
  double expert_ffn = 0;
  double element;  // bytes
};

BlockSizes SizesOf(const PlanJob& job, const Strategy& strategy, bool has_experts) {
  const ModelConfig& model = job.model;
  const Layout& layout = strategy.layout;
  const auto inputs = static_cast<double>(ActivationInputs(model.family->activation));
  BlockSizes s;
  s.rows = static_cast<double>(MicroBatchesOf(job, strategy).size) *
           static_cast<double>(job.sequence_length) / layout.cp;
  const bool splits = layout.tp > 1 && job.splits_rows && std::fmod(s.rows, layout.tp) == 0;
  s.own = splits ? s.rows / layout.tp : s.rows;
  s.hidden = model.hidden_size;
  s.heads = static_cast<double>(model.heads) / layout.tp;
  s.kv_heads = std::max(1.0, static_cast<double>(model.kv_heads) / layout.tp);
  s.head_size = model.head_size;
  s.attention = s.heads * s.head_size;
  s.qkv = (s.heads + 2 * s.kv_heads) * s.head_size;
  s.ffn =
      static_cast<double>(has_experts ? model.experts.shared_ffn_size : model.ffn_size) / layout.tp;
  s.gate_up = inputs * s.ffn;
  s.element = static_cast<double>(SizeOf(job.dtype));
  if (!has_experts) return s;
  const ExpertConfig& experts = model.experts;
  const double local = static_cast<double>(experts.count) / layout.ep;
  const double most = s.rows * layout.ep * std::min<double>(experts.chosen, local);
  s.expert_rows = std::min(most, std::ceil(experts.memory_factor * s.rows * experts.chosen));
  s.expert_ffn = static_cast<double>(experts.ffn_size) / layout.tp;
  return s;
}

// A block's tensors: what stays from the forward to the backward pass (`saved`), and what is made
// again in one place for all blocks of a rank (DeclareMixer, DeclareDense, DeclareExperts).
struct BlockBytes {
  double saved = 0;
  double recomputed = 0;      // but for the next
  double ffn_recomputed = 0;  // by a dense feed-forward layer or by shared experts, in one place
  double deferred = 0;        // from the input half of a backward pass to the weight half

  void Add(bool is_recomputed, double bytes) { (is_recomputed ? recomputed : saved) += bytes; }
  // A tensor that a weight's gradient is a product with.
  void AddFactor(bool is_recomputed, double bytes) {
    Add(is_recomputed, bytes);
    if (is_recomputed) deferred += bytes;
  }
};

// Gradients of the outputs of a block's linear layers, which the weight half reads.
double GradientBytes(const PlanJob& job, const BlockSizes& s) {
  double widths = s.qkv + s.hidden + s.gate_up + s.hidden;
  if (job.model.family->latent_attention) {
    const double query = job.model.query_rank > 0 ? job.model.query_rank : s.attention;
    const double first = query + job.model.key_rank + job.model.rotary_size;
    const double key_value = s.heads * (s.head_size - job.model.rotary_size + job.model.value_size);
    widths += first + s.attention + key_value - s.qkv;
  }
  return s.rows * widths * s.element;
}

BlockBytes BytesOfBlock(const PlanJob& job, const Strategy& strategy, bool has_experts) {
  const Family& family = *job.model.family;
  const BlockSizes s = SizesOf(job, strategy, has_experts);
  const Recompute& again = strategy.recompute;
  const double statistics = family.norm == NormKind::kLayer ? 8 : 4;
  BlockBytes bytes;
  const bool shares_norm = again.norms && s.own < s.rows;
  bytes.AddFactor(again.norms, s.rows * s.hidden * s.element);
  if (shares_norm) {
    bytes.deferred += s.rows * s.hidden * s.element;
  } else {
    bytes.AddFactor(again.norms, s.rows * s.hidden * s.element);
  }
  bytes.Add(false, 2 * s.own * statistics);
  bytes.Add(again.attention, s.rows * s.qkv * s.element);
  if (family.query_key_norms) {
    const double heads = s.rows * (s.heads + s.kv_heads);
    bytes.Add(again.attention, heads * (s.head_size * s.element + 4));
  }
  if (family.latent_attention) {
    const double ranks = job.model.query_rank + job.model.key_rank;
    bytes.Add(again.attention, s.rows * (ranks * s.element + 8));
    bytes.AddFactor(again.attention, s.rows * ranks * s.element);
  }
  bytes.AddFactor(again.attention, s.rows * s.attention * s.element);
  bytes.Add(again.attention, s.rows * s.heads * 4);
  if (family.post_norms) {
    bytes.Add(again.middle, s.own * (s.hidden * s.element + 4));
    bytes.Add(false, s.own * (s.hidden * s.element + 4));
  }
  bytes.Add(again.middle, s.own * s.hidden * s.element);
  BlockBytes ffn;
  ffn.Add(again.mlp, s.rows * s.gate_up * s.element);
  ffn.AddFactor(again.swiglu, s.rows * s.ffn * s.element);
  bytes.saved += ffn.saved;
  bytes.ffn_recomputed = ffn.recomputed;
  bytes.deferred += ffn.deferred;
  bytes.deferred += GradientBytes(job, s);
  if (!has_experts) return bytes;
  const ExpertConfig& experts = job.model.experts;
  const double inputs = ActivationInputs(family.activation);
  const double choices = s.rows * experts.chosen;
  bytes.Add(false, s.rows * experts.count * 4 + choices * (4 * strategy.layout.ep + 4));
  bytes.Add(false, (3 * choices + (strategy.layout.ep > 1 ? 2 : 1) * s.expert_rows) * 4);
  bytes.Add(again.mlp, s.expert_rows * (s.hidden + inputs * s.expert_ffn) * s.element);
  bytes.Add(again.swiglu, s.expert_rows * s.expert_ffn * s.element);
  return bytes;
}

// Scratch that all blocks of a rank share: gradients of the residual stream, of a block's widest
// inner tensors, and of attention (Block::scratch).
double ScratchBytes(const PlanJob& job, const Strategy& strategy, bool has_experts) {
  const BlockSizes s = SizesOf(job, strategy, has_experts);
  double wide = s.rows * s.qkv <= s.rows * s.ffn ? 0 : s.rows * s.qkv;
  double narrow = s.rows * s.attention;
  if (job.model.family->latent_attention) {
    const double key_value = s.heads * (s.head_size - job.model.rotary_size + job.model.value_size);
    narrow = s.rows * (job.model.query_rank + job.model.key_rank + s.attention + key_value);
  }
  double travelling = 0;
  if (has_experts) {
    wide = std::max(wide, s.expert_rows * s.hidden);
    // The bias of each row's expert lies there, too.
    const double widest =
        job.model.family->other_biases ? std::max(s.hidden, s.expert_ffn) : s.expert_ffn;
    narrow = std::max(narrow, s.expert_rows * widest);
    narrow = std::max(narrow, s.rows * job.model.experts.count);
    const double choices = s.rows * job.model.experts.chosen;
    if (strategy.layout.ep > 1) travelling = (choices + s.expert_rows) * s.hidden;
    travelling += (2 * choices + 3 * s.expert_rows) * 4 / s.element;
  }
  const bool has_branch = job.model.family->post_norms || job.model.multipliers.branches != 1;
  const double hidden = s.rows * s.hidden * (has_branch ? 2 : 1);
  double bytes = (hidden + wide + narrow + travelling) * s.element;
  if (job.float8) {
    const double widest = std::max({s.qkv, s.gate_up, s.hidden});
    bytes += s.rows * (std::max({s.hidden, s.ffn, s.attention}) + 2 * widest);
  }
  return bytes;
}

// Buffers of context-parallel attention (parallel/context_attention.cc).
double ContextBytes(const PlanJob& job, const Strategy& strategy) {
  if (strategy.layout.cp == 1) return 0;
  const BlockSizes s = SizesOf(job, strategy, false);
  const double keys = s.rows * 2 * s.kv_heads * s.head_size;
  const double queries = s.rows * s.attention;
  const bool by_heads = std::fmod(s.kv_heads, strategy.layout.cp) == 0;
  if (by_heads) return (2 * s.rows * s.qkv + queries) * s.element;
  return (2 * keys + queries) * s.element + (2 * keys + keys + queries) * 4;
}

// The two places that gathered units take in turn (SlotCounts, shard/placement.h): the largest
// unit, and the smaller one of any two neighbours.
struct SlotSizes {
  double first = 0;
  double second = 0;
};

SlotSizes SlotsOf(const RankCount& rank, const std::vector<ChunkCount>& chunks,
                  const ModelCounts::Units& units) {
  double block = 0;
  for (const ChunkCount& chunk : chunks) {
    if (chunk.dense > 0) block = std::max(block, units.dense.parameters);
    if (chunk.expert > 0) block = std::max(block, units.expert.parameters);
  }
  const bool holds_both = rank.has_embedding && rank.has_head;
  const double embedding = rank.has_embedding ? units.embedding.parameters : 0;
  const double head =
      rank.has_head ? units.head.parameters - (holds_both ? units.head.tied : 0) : 0;
  const int neighbours = rank.layers + (rank.has_embedding ? 1 : 0) + (rank.has_head ? 1 : 0);
  if (rank.layers == 0) return {std::max(embedding, head), std::min(embedding, head)};
  return {std::max({block, embedding, head}), neighbours > 1 ? block : 0};
}

// Parameters, gradients and optimizer state of `elements` over `shards` ranks. So many of them are
// of matrices of blocks.
void AddState(const PlanJob& job, int zero_stage, double elements, double matrices, double shards,
              const SlotSizes& slots, MemoryParts& parts) {
  const double element = static_cast<double>(SizeOf(job.dtype));
  const bool cuts_gradients = zero_stage >= 2 && shards > 1;
  const bool cuts_parameters = zero_stage >= 3 && shards > 1;
  const double own = elements / shards;
  parts.parameters += (cuts_parameters ? own : elements) * element;
  parts.gradients += (cuts_gradients ? own : elements) * 4;
  parts.optimizer += own * (4.0 * job.optimizer_states + (element < 4 ? 4 : 0) + 1.0 / 64);
  if (job.whole_matrices) parts.optimizer += (elements - matrices) / shards * 4;
  if (cuts_gradients) parts.communication += (slots.first + slots.second) * 4;
  if (cuts_parameters) parts.communication += (slots.first + slots.second) * element;
  if (job.reduce_dtype == DType::kBFloat16 && shards > 1) parts.communication += slots.first * 2;
}

// A unit of one store: what lies in the unit's own place, and in the store's first bucket.
struct StoredUnit {
  double own = 0;
  double first = 0;
  const MatrixCount* matrices = nullptr;
};

// The units of a rank's dense store (`of_experts` false), or of its store of experts, in order.
std::vector<StoredUnit> StoredUnits(const RankCount& rank, const std::vector<ChunkCount>& chunks,
                                    const ModelCounts::Units& units, bool of_experts) {
  std::vector<StoredUnit> stored;
  const auto add = [&](const UnitCount& unit, int count, double tied = 0) {
    const StoredUnit one = of_experts ? StoredUnit{unit.expert_parameters, 0, &unit.expert_matrices}
                                      : StoredUnit{unit.parameters - unit.in_first_bucket - tied,
                                                   unit.in_first_bucket, &unit.matrices};
    stored.insert(stored.end(), count, one);
  };
  if (rank.has_embedding) add(units.embedding, 1);
  for (const ChunkCount& chunk : chunks) {
    add(units.dense, chunk.dense);
    add(units.expert, chunk.expert);
  }
  if (rank.has_head) add(units.head, 1, rank.has_embedding ? units.head.tied : 0);
  return stored;
}

// The buffers in which Muon changes a store's matrices as wholes. `shards`: ranks that share its
// state.
void AddWholeMatrices(const PlanJob& job, const Strategy& strategy,
                      const std::vector<StoredUnit>& units, int shards, MemoryParts& parts) {
  const bool has_unit_buckets = strategy.zero_stage >= 2 && shards > 1;
  std::vector<int64_t> borders = {0};
  MatrixSizes sizes;
  double bucket = 0;
  bool has_matrix = false;
  for (const StoredUnit& unit : units) {
    borders.push_back(borders.back() + static_cast<int64_t>(unit.own));
    sizes.largest = std::max(sizes.largest, unit.matrices->largest);
    sizes.shorter_side = std::max(sizes.shorter_side, unit.matrices->shorter_side);
    bucket += unit.first;
    has_matrix |= unit.matrices->in_first_bucket > 0;
  }
  const std::vector<bool> opens =
      CutIntoBuckets(borders, has_unit_buckets ? kUnitBuckets : BucketCountMin(strategy.layout));
  const auto close = [&] {
    if (has_matrix) sizes.bucket = std::max(sizes.bucket, static_cast<int64_t>(bucket));
  };
  for (size_t i = 0; i < units.size(); ++i) {
    if (opens[i]) {
      close();
      bucket = 0;
      has_matrix = false;
    }
    bucket += units[i].own;
    has_matrix |= units[i].matrices->elements > units[i].matrices->in_first_bucket;
  }
  close();
  const MatrixMemory memory = MatrixMemoryOf(sizes, strategy.layout.tp, job.dtype);
  parts.communication += static_cast<double>(memory.bucket + memory.whole);
  parts.scratch += static_cast<double>(memory.square + memory.product);
}

// Activations of the micro batches under way, what is made again, and messages between stages.
void AddActivations(const PlanJob& job, const Strategy& strategy,
                    const std::vector<ChunkCount>& chunks, int64_t slots, int64_t deferred_slots,
                    const RankCount& rank, MemoryParts& parts) {
  // A slot has room for the largest chunk: blocks lie in the same places, whatever their chunk.
  int dense = 0;
  int expert = 0;
  for (const ChunkCount& chunk : chunks) {
    dense = std::max(dense, chunk.dense);
    expert = std::max(expert, chunk.expert);
  }
  const BlockSizes s = SizesOf(job, strategy, expert > 0);
  const BlockBytes of_dense = dense > 0 ? BytesOfBlock(job, strategy, false) : BlockBytes();
  const BlockBytes of_experts = expert > 0 ? BytesOfBlock(job, strategy, true) : BlockBytes();
  const double residual = s.own * s.hidden * s.element;
  const double inputs = dense + expert + (rank.has_embedding ? 1 : 0) - 1 + (rank.has_head ? 1 : 0);
  const double saved = dense * of_dense.saved + expert * of_experts.saved + inputs * residual;
  const double deferred = dense * of_dense.deferred + expert * of_experts.deferred;
  parts.activations =
      static_cast<double>(slots) * saved + static_cast<double>(deferred_slots) * deferred;
  // Each tensor has one place for the blocks of both kinds: what experts make is more than what a
  // dense block makes, but for the dense feed-forward layer.
  parts.scratch = std::max(of_dense.recomputed, of_experts.recomputed) +
                  std::max(of_dense.ffn_recomputed, of_experts.ffn_recomputed) +
                  ScratchBytes(job, strategy, expert > 0);
  parts.communication += ContextBytes(job, strategy);
  // A rank of a pipeline has two gradients of chunks under way, a rank alone has one.
  const bool is_pipeline = strategy.layout.pp > 1;
  const double gradient = s.rows * s.hidden * s.element;
  const double messages = is_pipeline ? static_cast<double>(slots) + 2 : 0;
  parts.communication += messages * residual + (is_pipeline ? 2 : 1) * gradient;
}

// Logits in chunks of rows, the final norm and its gradient.
void AddHead(const PlanJob& job, const Strategy& strategy, const RankCount& rank,
             MemoryParts& parts) {
  if (!rank.has_head) return;
  const BlockSizes s = SizesOf(job, strategy, false);
  const double columns = static_cast<double>(job.model.vocabulary_size) / strategy.layout.tp;
  const double fitting = static_cast<double>(job.logits_bytes) / (columns * s.element);
  const double chunk_rows = std::min(std::max(fitting, 16.0), s.rows);
  // Two of them, each half as large, where logits are capped.
  parts.logits = chunk_rows * columns * s.element + 2 * s.rows * s.hidden * s.element;
}

// With one micro batch, what a unit keeps until its backward pass lies, as far as it fits, in
// gradients that units before it have yet to make (Stage::AddUnits).
void Lend(const RankCount& rank, const ModelCounts::Units& units, MemoryParts& parts) {
  if (rank.layers == 0) return;
  const double block = (rank.expert_layers > 0 ? units.expert : units.dense).parameters * 4;
  // The gradient of a tied table is the first one that is made.
  const double embedding =
      rank.has_embedding && units.head.tied == 0 ? units.embedding.parameters * 4 : 0;
  double left = embedding + rank.layers * block;
  const auto take = [&](double bytes) {
    const double taken = std::min(left, bytes);
    left -= taken;
    return taken;
  };
  parts.logits -= take(parts.logits);
  const double kept = parts.activations / rank.layers;
  for (int before = rank.layers - 1; before >= 0; --before) {
    left = std::min(left, embedding + before * block);
    parts.activations -= take(kept);
  }
  parts.activations = std::max(0.0, parts.activations);  // rounding leaves a rest
}

}  // namespace

MicroBatches MicroBatchesOf(const PlanJob& job, const Strategy& strategy) {
  const BatchCut cut =
      EvenCut(job.global_batch_size, strategy.micro_batch_size, strategy.layout.dp);
  return {MicrobatchCount(cut), cut.micro_batch_size};
}

int64_t SavedSlots(const Strategy& strategy, int stage, int64_t microbatches) {
  const int64_t ranks = strategy.layout.pp;
  const int64_t chunks = strategy.virtual_stages;
  if (strategy.zero_bubble) return std::min(ranks, microbatches);
  const int64_t round = FirstRound(strategy.layout.pp, static_cast<int>(microbatches));
  const int64_t warm_up =
      chunks == 1 ? ranks - stage : (chunks - 1) * round + 2 * (ranks - stage) - 1;
  return std::min(warm_up, chunks * microbatches);
}

int64_t DeferredSlots(const Strategy& strategy, int stage, int64_t microbatches) {
  return strategy.zero_bubble ? std::min<int64_t>(stage + 1, microbatches) : 0;
}

double SavedBytes(const PlanJob& job, const Strategy& strategy, bool has_experts) {
  return BytesOfBlock(job, strategy, has_experts).saved;
}

MemoryParts MemoryOfStage(const PlanJob& job, const Strategy& strategy, int stage,
                          ModelCounts& counts) {
  const Layout& layout = strategy.layout;
  const std::vector<ChunkCount>& chunks =
      counts.Stages(layout.pp, strategy.virtual_stages).ranks[stage];
  const ModelCounts::Units& units = counts.Of(layout.tp, layout.ep);
  const RankCount rank = ModelCounts::Sum(chunks, units);
  MemoryParts parts;
  AddState(job, strategy.zero_stage, rank.whole, rank.matrices, layout.dp_shard() * layout.cp,
           SlotsOf(rank, chunks, units), parts);
  const double of_experts = units.expert.expert_parameters;
  AddState(job, strategy.zero_stage, rank.experts, rank.expert_matrices, layout.expert_shards(),
           {rank.expert_layers > 0 ? of_experts : 0, rank.expert_layers > 1 ? of_experts : 0},
           parts);
  const MicroBatches micro = MicroBatchesOf(job, strategy);
  AddActivations(job, strategy, chunks, SavedSlots(strategy, stage, micro.count),
                 DeferredSlots(strategy, stage, micro.count), rank, parts);
  if (job.whole_matrices) {
    AddWholeMatrices(job, strategy, StoredUnits(rank, chunks, units, false),
                     layout.dp_shard() * layout.cp, parts);
    if (rank.experts > 0) {
      AddWholeMatrices(job, strategy, StoredUnits(rank, chunks, units, true),
                       layout.expert_shards(), parts);
    }
  }
  AddHead(job, strategy, rank, parts);
  if (job.float8) {
    const bool cuts_parameters = strategy.zero_stage >= 3 && layout.dp_shard() * layout.cp > 1;
    const double blocks = cuts_parameters ? 1 : rank.layers;
    parts.parameters += 2 * blocks * units.dense.multiplied;
  }
  const bool shards_gradients = strategy.zero_stage >= 2 && layout.dp_shard() * layout.cp > 1;
  if (micro.count == 1 && chunks.size() == 1 && !shards_gradients && !strategy.zero_bubble) {
    Lend(rank, units, parts);
  }
  return parts;
}

MemoryParts LargestMemory(const PlanJob& job, const Strategy& strategy, ModelCounts& counts) {
  MemoryParts most;
  const StageCounts& stages = counts.Stages(strategy.layout.pp, strategy.virtual_stages);
  // Later ranks of the same kind keep fewer micro batches, and put off more weight halves.
  for (const int stage : strategy.zero_bubble ? stages.last : stages.distinct) {
    const MemoryParts parts = MemoryOfStage(job, strategy, stage, counts);
    if (parts.Total() > most.Total()) most = parts;
  }
  return most;
}

double UnshardedBytes(const PlanJob& job) {
  ModelCounts counts(job.model);
  const RankCount whole = ModelCounts::Sum(counts.Stages(1, 1).ranks[0], counts.Of(1, 1));
  const auto parameters = static_cast<double>(ParameterCount(job.model));
  MemoryParts parts;
  AddState(job, 0, parameters, whole.matrices, 1, {}, parts);
  return parts.Total();
}

}  // namespace convene::worker
