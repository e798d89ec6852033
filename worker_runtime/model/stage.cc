#include "worker_runtime/model/stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/block.h"
#include "worker_runtime/model/embedding.h"
#include "worker_runtime/model/loss_head.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/ops/binned_sum.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/parallel/chunked_rows.h"
#include "worker_runtime/parallel/context_attention.h"
#include "worker_runtime/parallel/vocabulary.h"
#include "worker_runtime/pipeline/graphed_ops.h"

namespace convene::worker {
namespace {

constexpr int64_t kLosses = 3;  // Stage::Bind's

// The rotary positions of all layers, and behind them those of layers with a window, where they
// differ.
std::vector<RopeKind> RopesOf(const ModelConfig& config) {
  if (config.family->learned_positions) return {};
  std::vector<RopeKind> ropes = {{config.rope_theta, config.rope_scaling}};
  if (config.window_rope_theta > 0) ropes.push_back({config.window_rope_theta, {}});
  return ropes;
}

// Where the family says it, by sqrt(hidden_size), as the activations' type has it.
template <typename T>
float EmbeddingScale(const ModelConfig& config) {
  if (!config.family->scales_embedding) return static_cast<float>(config.multipliers.embedding);
  return static_cast<float>(T(std::sqrt(static_cast<float>(config.hidden_size))));
}

template <typename T>
class StageOf final : public Stage {
 public:
  StageOf(const Options& options, const UnitsByChunk& chunks, UnitStore& store,
          const Groups& groups, Device& device, Arena& arena, Arena& staging);

  void Bind(double* losses, double* exact) override;
  ExpertTotals TakeExpertTotals() override { return std::exchange(expert_totals_, {}); }
  void SetBatch(const StageBatch& batch) override { batch_ = batch; }

  absl::Status Run(const StagePass& pass, Stream& stream) override {
    return pass.compute.kind == ComputeKind::kForward ? Forward(pass, stream)
                                                      : Backward(pass, stream);
  }
  Elements activation(int slot) override { return Hidden(Activation(slot)); }
  Elements logits() override {
    const int columns =
        SliceVocabulary(options_.config.vocabulary_size, tp_.size(), tp_.rank()).size();
    return {head_->logits(), size_t{1} * options_.cached_logits * columns, kDTypeOf<T>};
  }
  // As MoveGradient leaves it for the other chunk.
  Elements gradient(int slot) override { return Hidden(rows_.Own(Gradient(slot), 0)); }

 private:
  // A chunk's units, and the number of the first one in the store.
  struct Chunk {
    std::vector<std::unique_ptr<Unit<T>>> units;
    std::vector<std::vector<int>> tensors;  // of each unit, by role
    int first_unit = 0;
    bool has_embedding = false;

    // Units behind the embedding.
    size_t places() const { return units.size() - (has_embedding ? 1 : 0); }
  };

  void AddChunks(const UnitsByChunk& chunks);
  void AddUnits(const std::vector<UnitSpec>& specs, const BlockMemory<T>& recomputed, bool borrows,
                Chunk& chunk);
  void AddRooms(const std::vector<UnitSpec>& specs);
  void DeclareInput(size_t place);
  std::unique_ptr<Unit<T>> MakeUnit(const UnitSpec& unit, size_t place);
  LayerAttention AttentionOf(int layer) const;
  BlockShape ShapeOf(int layer) const {
    return ShapeOfLayer(shape_, options_.config, layer, tp_.size(), ep_.size(), ep_.rank());
  }
  void DeclareExpertScratch();
  BlockFloat8 MakeFloat8(int layer);
  void DeclareShared();
  absl::Status Forward(const StagePass& pass, Stream& stream);
  absl::Status Backward(const StagePass& pass, Stream& stream);
  // A chunk's i-th unit, through StagePass::graphs where they are.
  absl::Status ForwardUnit(const StagePass& stage_pass, int i, const Pass<T>& pass, T* target,
                           Flow<T>& flow);
  absl::Status BackwardUnit(const StagePass& stage_pass, int i, const Pass<T>& pass, T* gradient);
  enum class Way { kTogether, kApart };
  void MoveGradient(T* gradient, Way way, Stream& stream);
  absl::StatusOr<Pass<T>> MakePass(const StagePass& pass, int unit, Stream& stream);

  Elements Hidden(T* data) const { return {data, rows_.own_count(), kDTypeOf<T>}; }
  size_t own_chunk_bytes() const { return rows_.chunk().own_count() * sizeof(T); }
  T* Activation(int slot) const { return At(activation_memory_[slot]); }
  T* Gradient(int slot) const { return At(gradient_memory_[slot]); }
  // The tensors that the block at a place computes again.
  const Recompute& RecomputeAt(size_t place) const {
    return place < static_cast<size_t>(options_.recompute.layers) ? options_.recompute
                                                                  : Recompute::kNone;
  }
  // Where the input lies of the unit at a place behind the chunk's embedding; the place after the
  // last unit: where the chunk's output goes.
  T* Input(const StagePass& pass, size_t place) const;

  const Options options_;
  UnitStore& store_;
  Collective& tp_;
  Collective& cp_;
  Collective& ep_;
  Device& device_;
  Arena& arena_;
  Arena& staging_;
  const BlockShape shape_;  // of a block without experts
  BlockShape room_;         // for any block of the rank
  const ContextCut cut_;
  ChunkedRows rows_;
  ContextAttention<T> attention_;
  std::map<int, Chunk> chunks_;
  LossHead<T>* head_ = nullptr;  // of one of the chunks; null: none has it

  // By place behind the chunk's embedding, and slot: all chunks share them.
  std::vector<BlockShape> rooms_;  // by place: for the block of any chunk
  std::vector<std::vector<BlockMemory<T>>> saved_memory_;
  std::vector<std::vector<BlockDeferred<T>>> deferred_memory_;
  std::vector<std::vector<ArenaBlock<T>>> input_memory_;
  std::vector<ArenaBlock<T>> activation_memory_;  // by slot: inputs of chunks, on both ranks
  std::vector<ArenaBlock<T>> gradient_memory_;    // by slot
  ArenaBlock<T> hidden_memory_, branch_memory_, wide_memory_, narrow_memory_;
  ArenaBlock<char> workspace_memory_;
  // Of blocks with experts.
  ArenaBlock<T> sent_memory_, arrived_memory_;
  ArenaBlock<float> floats_memory_;
  ArenaBlock<int32_t> chosen_;
  ChunkedRows summands_;
  std::unique_ptr<Event> routed_, fork_, join_;
  ExpertTotals expert_totals_ = {};
  ExpertSurroundings<T> experts_;
  AdapterScratch<T> adapter_scratch_;
  Float8Scratch float8_scratch_;
  Float8Weights float8_weights_;  // where no block keeps its own
  ScratchSizes scratch_;

  // Set by Bind.
  UnitSurroundings<T> around_;
  double* losses_ = nullptr;
  double* exact_ = nullptr;

  StageBatch batch_;
  // By chunk, microbatch and unit, where units are graphs: see ForwardUnit.
  std::map<std::tuple<int, int, int>, Flow<T>> outputs_;
};

template <typename T>
StageOf<T>::StageOf(const Options& options, const UnitsByChunk& chunks, UnitStore& store,
                    const Groups& groups, Device& device, Arena& arena, Arena& staging)
    : options_(options),
      store_(store),
      tp_(groups.tp),
      cp_(groups.cp),
      ep_(groups.ep),
      device_(device),
      arena_(arena),
      staging_(staging),
      shape_(MakeBlockShape(options.config, tp_.size(), options.sequence_parallel,
                            options.micro_batch_size, options.sequence_length / cp_.size(),
                            options.deterministic, options.packed_documents)),
      cut_{options.context_method, cp_.size(), cp_.rank(), options.sequence_length},
      rows_(shape_.rows(), shape_.hidden, options.sequence_parallel, tp_, options.row_chunks,
            tp_.size() > 1 && options.overlaps ? &device : nullptr),
      attention_({.local = shape_.attention(),
                  .cut = cut_,
                  .ropes = RopesOf(options.config),
                  .rotary_size = shape_.rotary_size,
                  .has_sinks = options.config.family->names.sinks != nullptr,
                  .overlaps = options.overlaps,
                  .cache = options.cache},
                 cp_, device, arena),
      summands_(ChunkedRows::Summands(shape_.rows(), shape_.hidden, tp_)) {
  scratch_.Include({.workspace_bytes = attention_.workspace_bytes()});
  AddChunks(chunks);
  DeclareShared();
}

template <typename T>
void StageOf<T>::AddChunks(const UnitsByChunk& chunks) {
  if (options_.float8.is_on) {
    float8_scratch_ = DeclareFloat8Scratch(shape_, arena_);
    if (!options_.float8.keeps_weights) float8_weights_ = DeclareFloat8Weights(shape_, arena_);
  }
  for (const auto& [number, specs] : chunks) AddRooms(specs);
  room_ = rooms_.empty() ? shape_ : rooms_.front();
  for (const BlockShape& room : rooms_) room_ = RoomForBoth(room_, room);
  adapter_scratch_ = DeclareAdapterScratch<T>(room_, options_.config.adapter, arena_);
  const BlockMemory<T> recomputed = DeclareRecomputed<T>(room_, options_.recompute, arena_);
  int first_unit = 0;
  for (const auto& [number, specs] : chunks) {
    Chunk& chunk = chunks_[number];
    chunk.first_unit = first_unit;
    chunk.has_embedding = specs.front().kind == UnitKind::kEmbedding;
    chunk.units.resize(specs.size());
    for (const UnitSpec& spec : specs) chunk.tensors.push_back(PlacesOf(spec));
    first_unit += static_cast<int>(specs.size());
    const size_t places = std::max(input_memory_.size(), chunk.places());
    saved_memory_.resize(places);
    deferred_memory_.resize(places);
    input_memory_.resize(places);
    AddUnits(specs, recomputed, chunks.size() == 1 && options_.deferred_slots == 0, chunk);
  }
}

template <typename T>
void StageOf<T>::AddRooms(const std::vector<UnitSpec>& specs) {
  size_t place = 0;
  for (const UnitSpec& spec : specs) {
    if (spec.kind != UnitKind::kBlock) continue;
    const BlockShape shape = ShapeOf(spec.layer);
    if (place < rooms_.size()) {
      rooms_[place] = RoomForBoth(rooms_[place], shape);
    } else {
      rooms_.push_back(shape);
    }
    ++place;
  }
}

// From the last unit to the first, as the backward pass goes: what a unit keeps until its backward
// pass lies, where it fits, in gradients that units before it have yet to make. `borrows`: false
// where chunks share activations, and so do not all end with them at once, and where weight halves
// read them when units before have made gradients.
template <typename T>
void StageOf<T>::AddUnits(const std::vector<UnitSpec>& specs, const BlockMemory<T>& recomputed,
                          bool borrows, Chunk& chunk) {
  size_t left = borrows ? std::numeric_limits<size_t>::max() : 0;
  for (size_t i = specs.size(); i-- > 0;) {
    const ArenaBlock<float> idle = store_.IdleGradients(chunk.first_unit + static_cast<int>(i));
    left = std::min(left, idle.size());
    arena_.Lend(idle.Slice(0, left));
    const size_t place = i - (chunk.has_embedding ? 1 : 0);
    if (specs[i].kind == UnitKind::kBlock && saved_memory_[place].empty()) {
      saved_memory_[place] =
          DeclareSaved(rooms_[place], RecomputeAt(place), recomputed, options_.saved_slots, arena_);
      deferred_memory_[place] =
          DeclareDeferred<T>(rooms_[place], RecomputeAt(place), options_.deferred_slots, arena_);
    }
    if (specs[i].kind != UnitKind::kEmbedding) DeclareInput(place);
    chunk.units[i] = MakeUnit(specs[i], place);
    scratch_.Include(chunk.units[i]->scratch(device_.kind()));
    left = arena_.lent_bytes() / sizeof(float);
  }
  arena_.Lend(ArenaBlock<float>());
}

// The first place is summed over tp, behind an embedding, or it is an activation slot.
template <typename T>
void StageOf<T>::DeclareInput(size_t place) {
  if (!input_memory_[place].empty()) return;
  const bool has_embedding = chunks_.begin()->second.has_embedding;
  for (int slot = 0; slot < options_.saved_slots; ++slot) {
    input_memory_[place].push_back(
        arena_.Declare<T>("activations/input", place > 0 || has_embedding ? rows_.own_count() : 0,
                          place > 0 ? ArenaPart::kLocal : ArenaPart::kCollective));
  }
}

// A window that holds the whole row is none.
template <typename T>
LayerAttention StageOf<T>::AttentionOf(int layer) const {
  const int window = WindowOf(options_.config, layer);
  const int longest =
      options_.cache == nullptr ? options_.sequence_length : options_.cache->shape().context;
  const int rope = window > 0 && options_.config.window_rope_theta > 0 ? 1 : 0;
  return {.window = window < longest ? window : 0,
          .rope = HasRope(options_.config, layer) ? rope : LayerAttention::kNoRope,
          .cached = layer};
}

// Declares what is the block's own. Like activations it lasts from the block's first forward pass
// to its last backward pass, so it may lie in idle gradients too.
template <typename T>
BlockFloat8 StageOf<T>::MakeFloat8(int layer) {
  const Float8Products& products = options_.float8;
  const int ends = products.bf16_end_blocks;
  if (!products.is_on || layer < ends || layer >= options_.config.layers - ends) return {};
  BlockFloat8 float8 = {
      .is_on = true,
      .keeps_weights = products.keeps_weights,
      .weights = products.keeps_weights ? DeclareFloat8Weights(shape_, arena_) : float8_weights_,
      .scratch = float8_scratch_};
  for (int slot = 0; slot < options_.saved_slots; ++slot) {
    float8.inputs.push_back(DeclareFloat8Scales("fp8/scales", arena_));
  }
  for (int slot = 0; slot < options_.deferred_slots; ++slot) {
    float8.gradients.push_back(DeclareFloat8Scales("fp8/scales", arena_));
  }
  return float8;
}

template <typename T>
std::unique_ptr<Unit<T>> StageOf<T>::MakeUnit(const UnitSpec& unit, size_t place) {
  const VocabularySlice vocabulary =
      SliceVocabulary(options_.config.vocabulary_size, tp_.size(), tp_.rank());
  switch (unit.kind) {
    case UnitKind::kEmbedding:
      return std::make_unique<Embedding<T>>(
          EmbeddingShape{
              .batch = shape_.batch,
              .length = shape_.sequence_length,
              .hidden = shape_.hidden,
              .vocabulary = vocabulary,
              .positions = SliceVocabulary(options_.config.positions, tp_.size(), tp_.rank()),
              .runs = cut_.Runs(),
              .scale = EmbeddingScale<T>(options_.config)},
          arena_);
    case UnitKind::kBlock:
      return std::make_unique<Block<T>>(
          ShapeOf(unit.layer), AttentionOf(unit.layer), RecomputeAt(place), saved_memory_[place],
          deferred_memory_[place],
          BlockLinears<T>{.float8 = MakeFloat8(unit.layer),
                          .adapters = BlockAdapters<T>(unit, options_.config.adapter, options_.seed,
                                                       adapter_scratch_)},
          rows_.chunks(), staging_);
    case UnitKind::kHead: {
      auto head = std::make_unique<LossHead<T>>(
          LossHeadShape{.rows = shape_.rows(),
                        .residual_rows = shape_.residual_rows,
                        .hidden = shape_.hidden,
                        .vocabulary = vocabulary,
                        .norm = options_.config.family->norm,
                        .norm_epsilon = shape_.norm_epsilon,
                        .logit_cap = static_cast<float>(options_.config.logit_cap),
                        .logit_divisor = static_cast<float>(options_.config.multipliers.logits),
                        .logits_bytes = options_.logits_bytes > 0 ? options_.logits_bytes
                                                                  : LossLogitsBytes(device_.kind()),
                        .cached_logits = options_.cache == nullptr ? 0 : options_.cached_logits,
                        .preference_beta = options_.preference_beta,
                        .samples = shape_.batch},
          options_.head_slots, device_.kind(), arena_);
      head_ = head.get();
      return head;
    }
  }
  CONVENE_CHECK(false);
}

template <typename T>
void StageOf<T>::DeclareShared() {
  const int64_t hidden_count = int64_t{shape_.rows()} * shape_.hidden;
  for (int slot = 0; slot < options_.activation_slots; ++slot) {
    activation_memory_.push_back(
        arena_.Declare<T>("activations/between chunks", rows_.own_count(), ArenaPart::kCollective));
  }
  for (int slot = 0; slot < options_.gradient_slots; ++slot) {
    gradient_memory_.push_back(
        arena_.Declare<T>("scratch/gradient", hidden_count, ArenaPart::kCollective));
  }
  hidden_memory_ = arena_.Declare<T>("scratch/hidden", hidden_count, ArenaPart::kCollective);
  if (options_.config.family->post_norms || shape_.branch_scale != 1) {
    branch_memory_ = arena_.Declare<T>("scratch/branch", hidden_count, ArenaPart::kCollective);
  }
  wide_memory_ = arena_.Declare<T>("scratch/wide", scratch_.wide);
  narrow_memory_ = arena_.Declare<T>("scratch/narrow", scratch_.narrow);
  ArenaBlock<char>* const shared = options_.workspace;
  if (shared != nullptr && shared->size() >= scratch_.workspace_bytes) {
    workspace_memory_ = *shared;
  } else {
    workspace_memory_ = arena_.Declare<char>("scratch/workspace", scratch_.workspace_bytes);
    if (shared != nullptr) *shared = workspace_memory_;
  }
  if (room_.experts.is_on()) DeclareExpertScratch();
}

template <typename T>
void StageOf<T>::DeclareExpertScratch() {
  constexpr ArenaPart kPart = ArenaPart::kCollective;
  sent_memory_ = arena_.Declare<T>("scratch/tokens to experts", scratch_.sent, kPart);
  arrived_memory_ = arena_.Declare<T>("scratch/tokens from ranks", scratch_.arrived, kPart);
  floats_memory_ = arena_.Declare<float>("scratch/router", scratch_.floats, kPart);
  const DispatchShape& dispatch = room_.experts.dispatch;
  chosen_ = staging_.Declare<int32_t>(
      "expert choices", int64_t{1} * dispatch.ranks * dispatch.rows * dispatch.chosen);
  routed_ = device_.MakeEvent();
  fork_ = device_.MakeEvent();
  join_ = device_.MakeEvent();
}

template <typename T>
void StageOf<T>::Bind(double* losses, double* exact) {
  losses_ = losses;
  exact_ = exact;
  attention_.Bind();
  around_ = {.device = &device_,
             .rows = &rows_,
             .cp = &cp_,
             .attention = &attention_,
             .hidden = At(hidden_memory_),
             .branch = At(branch_memory_),
             .wide = At(wide_memory_),
             .narrow = At(narrow_memory_),
             .workspace = {At(workspace_memory_), scratch_.workspace_bytes},
             .cache = options_.cache};
  if (!room_.experts.is_on()) return;
  experts_ = {.ep = &ep_,
              .summands = &summands_,
              .sent = At(sent_memory_),
              .arrived = At(arrived_memory_),
              .floats = At(floats_memory_),
              .chosen = At(chosen_),
              .losses = losses_ + 1,
              .totals = &expert_totals_,
              .beside = options_.overlaps ? &device_ : nullptr,
              .routed = routed_.get(),
              .fork = fork_.get(),
              .join = join_.get(),
              .timeout = options_.timeout};
  around_.experts = &experts_;
}

template <typename T>
T* StageOf<T>::Input(const StagePass& pass, size_t place) const {
  const Chunk& chunk = chunks_.at(pass.compute.chunk);
  if (place == chunk.places()) return Activation(pass.output);
  if (place == 0 && !chunk.has_embedding) return Activation(pass.input);
  return At(input_memory_[place][pass.saved]);
}

template <typename T>
absl::StatusOr<Pass<T>> StageOf<T>::MakePass(const StagePass& pass, int unit, Stream& stream) {
  const Chunk& chunk = chunks_.at(pass.compute.chunk);
  const int64_t row = int64_t{pass.compute.microbatch} * shape_.rows();
  const int64_t sample = int64_t{pass.compute.microbatch} * shape_.batch;
  const bool is_embedding = unit == 0 && chunk.has_embedding;
  absl::Span<const void* const> weights;
  if (pass.compute.kind != ComputeKind::kBackwardWeight) {
    CONVENE_ASSIGN_OR_RETURN(weights, store_.Acquire(chunk.first_unit + unit));
  }
  return Pass<T>{
      .around = around_,
      .store = store_,
      .unit = chunk.first_unit + unit,
      .slot = pass.saved,
      .deferred = pass.deferred,
      .head = pass.head,
      .is_first = pass.is_first,
      .is_first_weight = pass.is_first_weight,
      .input = is_embedding ? nullptr : Input(pass, unit - (chunk.has_embedding ? 1 : 0)),
      .inputs = batch_.inputs + row,
      .targets = batch_.targets + row,
      .token_numbers = batch_.token_numbers != nullptr ? batch_.token_numbers + row : nullptr,
      .gradient_scale = batch_.gradient_scale,
      .loss_sum = losses_,
      .references = batch_.references != nullptr ? batch_.references + sample : nullptr,
      .answer_losses =
          batch_.answer_losses != nullptr ? batch_.answer_losses + 2 * sample : nullptr,
      .rewards = batch_.rewards,
      .documents =
          batch_.documents != nullptr ? batch_.documents[pass.compute.microbatch] : Documents{},
      .stream = stream,
      .places = chunk.tensors[unit],
      .weights = weights};
}

// A graph that is launched runs no code of the host, so the flow behind the unit is kept from the
// run that was captured.
template <typename T>
absl::Status StageOf<T>::ForwardUnit(const StagePass& stage_pass, int i, const Pass<T>& pass,
                                     T* target, Flow<T>& flow) {
  const auto& [kind, number, microbatch] = stage_pass.compute;
  Unit<T>& unit = *chunks_.at(number).units[i];
  if (stage_pass.graphs == nullptr) return unit.Forward(pass, target, flow);
  Flow<T>& output = outputs_[{number, microbatch, i}];
  CONVENE_RETURN_IF_ERROR(stage_pass.graphs->Run({stage_pass.compute, i}, pass.stream, [&] {
    output = flow;
    return unit.Forward(pass, target, output);
  }));
  flow = output;
  return absl::OkStatus();
}

template <typename T>
absl::Status StageOf<T>::BackwardUnit(const StagePass& stage_pass, int i, const Pass<T>& pass,
                                      T* gradient) {
  Unit<T>& unit = *chunks_.at(stage_pass.compute.chunk).units[i];
  const auto queue_ops = [&] {
    if (stage_pass.compute.kind != ComputeKind::kBackwardWeight) {
      return unit.Backward(pass, gradient);
    }
    unit.BackwardWeight(pass);
    return absl::OkStatus();
  };
  if (stage_pass.graphs == nullptr) return queue_ops();
  return stage_pass.graphs->Run({stage_pass.compute, i}, pass.stream, queue_ops);
}

template <typename T>
absl::Status StageOf<T>::Forward(const StagePass& stage_pass, Stream& stream) {
  const Chunk& chunk = chunks_.at(stage_pass.compute.chunk);
  const int units = static_cast<int>(chunk.units.size());
  const bool goes_on = stage_pass.output >= 0;
  Flow<T> flow;
  for (int i = 0; i < units; ++i) {
    CONVENE_ASSIGN_OR_RETURN(const Pass<T> pass, MakePass(stage_pass, i, stream));
    if (i + 1 < units) CONVENE_RETURN_IF_ERROR(store_.Prefetch(pass.unit + 1));
    if (i == 0) flow = {.residual = pass.input};
    T* target = around_.hidden;
    if (pass.input == nullptr) {
      target = Input(stage_pass, 0);
    } else if (i + 1 == units && goes_on && !rows_.is_split()) {
      target = Activation(stage_pass.output);
    }
    CONVENE_RETURN_IF_ERROR(ForwardUnit(stage_pass, i, pass, target, flow));
    const bool is_head = i + 1 == units && !goes_on;
    if (exact_ != nullptr && (is_head || room_.experts.is_on())) {
      ExactAdd(kLosses, losses_, exact_, stream);
    }
    store_.Release(pass.unit);
  }
  if (!goes_on || flow.delta == nullptr) return absl::OkStatus();
  T* const output = Activation(stage_pass.output);
  for (int c = 0; c < rows_.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows_.Finish(flow.delta, c, stream));
    if (rows_.is_split()) {
      device_.Copy(rows_.Own(flow.delta, c), rows_.Packed(output, c), own_chunk_bytes(), stream);
    }
  }
  AddInPlace(static_cast<int64_t>(rows_.own_count()), flow.residual, output, stream);
  return absl::OkStatus();
}

// Between two chunks of the model the own rows of a gradient lie together, where the first of them
// always are. On its way no row meets one that is still to be moved.
template <typename T>
void StageOf<T>::MoveGradient(T* gradient, Way way, Stream& stream) {
  if (!rows_.is_split()) return;
  for (int i = 1; i < rows_.chunks(); ++i) {
    const int c = way == Way::kTogether ? i : rows_.chunks() - i;
    T* const apart = rows_.Own(gradient, c);
    T* const together = rows_.Packed(rows_.Own(gradient, 0), c);
    device_.Copy(way == Way::kTogether ? apart : together, way == Way::kTogether ? together : apart,
                 own_chunk_bytes(), stream);
  }
}

template <typename T>
absl::Status StageOf<T>::Backward(const StagePass& stage_pass, Stream& stream) {
  const Chunk& chunk = chunks_.at(stage_pass.compute.chunk);
  const bool is_weight_half = stage_pass.compute.kind == ComputeKind::kBackwardWeight;
  T* const gradient = is_weight_half ? nullptr : Gradient(stage_pass.gradient);
  if (!is_weight_half && stage_pass.head < 0) MoveGradient(gradient, Way::kApart, stream);
  for (int i = static_cast<int>(chunk.units.size()) - 1; i >= 0; --i) {
    CONVENE_ASSIGN_OR_RETURN(const Pass<T> pass, MakePass(stage_pass, i, stream));
    if (!is_weight_half && i > 0) CONVENE_RETURN_IF_ERROR(store_.Prefetch(pass.unit - 1));
    CONVENE_RETURN_IF_ERROR(BackwardUnit(stage_pass, i, pass, gradient));
    if (!is_weight_half) store_.Release(pass.unit);
    if (stage_pass.compute.kind == ComputeKind::kBackwardInput) continue;
    CONVENE_RETURN_IF_ERROR(store_.GradientsDone(pass.unit, stage_pass.is_last));
  }
  if (!is_weight_half && !chunk.has_embedding) MoveGradient(gradient, Way::kTogether, stream);
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Stage> Stage::Make(const Options& options, const UnitsByChunk& chunks,
                                   UnitStore& store, const Groups& groups, Device& device,
                                   Arena& arena, Arena& staging) {
  switch (options.dtype) {
    case DType::kFloat32:
      return std::make_unique<StageOf<float>>(options, chunks, store, groups, device, arena,
                                              staging);
    case DType::kBFloat16:
      return std::make_unique<StageOf<BFloat16>>(options, chunks, store, groups, device, arena,
                                                 staging);
    case DType::kFloat64:
    case DType::kE4M3:
    case DType::kE5M2:
    case DType::kInt32:
    case DType::kUInt8:
      break;
  }
  CONVENE_CHECK(false);
}

}  // namespace convene::worker
