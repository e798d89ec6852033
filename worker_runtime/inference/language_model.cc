#include "worker_runtime/inference/language_model.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/model/block_part.h"
#include "worker_runtime/schedule/chunk_layers.h"
#include "worker_runtime/schedule/generators.h"

namespace convene::worker {
namespace {

// The most tokens of a pass that makes the logits of all of them: a vocabulary's width for each.
constexpr int kMostLogits = 32;

// One chunk a rank, in order.
ChunkPlacement PlacementOf(const Layout& layout) {
  ChunkPlacement placement(layout.pp);
  for (int stage = 0; stage < layout.pp; ++stage) placement[stage] = stage;
  return placement;
}

absl::StatusOr<UnitsByChunk> UnitsOfRank(const LanguageModel::Options& options,
                                         const CommunicatorSet& communicators) {
  const Layout& layout = options.layout;
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int> layers,
                           CutLayers("", options.config.layers, layout.pp, /*head_cost=*/0));
  const int stage = communicators.pp->rank();
  return UnitsByChunk{{stage, UnitsOf(options.config, ChunksOf(layers, PlacementOf(layout))[stage],
                                      layout.tp, communicators.tp->rank())}};
}

std::vector<UnitSpec> AllUnits(const UnitsByChunk& chunks) {
  std::vector<UnitSpec> units;
  for (const auto& [chunk, of_chunk] : chunks) {
    units.insert(units.end(), of_chunk.begin(), of_chunk.end());
  }
  return units;
}

KeyValueCache::Shape CacheShape(const LanguageModel::Options& options, const UnitsByChunk& units) {
  const BlockShape block =
      MakeBlockShape(options.config, options.layout.tp, /*sequence_parallel=*/false, 1, 1,
                     /*deterministic=*/false, /*packed=*/false);
  KeyValueCache::Shape shape = {.sequences = options.sequences,
                                .context = options.context,
                                .width = 2 * block.kv_heads * block.head_size,
                                .dtype = options.dtype};
  for (const UnitSpec& unit : AllUnits(units)) {
    if (unit.kind == UnitKind::kBlock) shape.layers.push_back(unit.layer);
  }
  std::sort(shape.layers.begin(), shape.layers.end());
  return shape;
}

}  // namespace

LanguageModel::Own::Own(const Options& options, UnitsByChunk rank_units, Device& device)
    : arena("generation", device.memory()),
      staging("generation on the host", device.staging()),
      units(std::move(rank_units)),
      placement(PlacementOf(options.layout)),
      store(AllUnits(units), options.dtype, device, arena) {}

LanguageModel::LanguageModel(const Options& options, const Weights& weights,
                             const CommunicatorSet& communicators, Device& device, Arena& arena,
                             Arena& staging)
    : options_(options),
      communicators_(communicators),
      alone_(SoloCommunicators()),
      device_(device),
      head_stage_(weights.placement.back()),
      cache_(CacheShape(options, weights.units), arena) {
  const int largest = std::max(std::min(options.prompt_tokens, options.context), options.sequences);
  std::set<int> sizes = {options.sequences, largest};
  for (int tokens = 1; tokens < largest; tokens *= 2) sizes.insert(tokens);
  const RankPlan plan =
      (*Lower(ForwardOnly(weights.placement, /*microbatches=*/1)))[communicators.pp->rank()];
  // From the largest on, as its workspace has room for the others.
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    AddShape(*size, weights, plan, arena, staging);
  }
  tokens_ = arena.Declare<int32_t>("generation/tokens", largest);
  losses_ = arena.Declare<double>("generation/losses", 3);
  const size_t logits = size_t{1} * std::max(options.sequences, std::min(largest, kMostLogits)) *
                        options.config.vocabulary_size;
  gathered_ =
      arena.Declare<char>("generation/logits of all ranks",
                          has_head() ? logits * SizeOf(options.dtype) : 0, ArenaPart::kCollective);
}

void LanguageModel::AddShape(int tokens, const Weights& weights, const RankPlan& plan, Arena& arena,
                             Arena& staging) {
  std::unique_ptr<Stage> stage = Stage::Make(
      {.config = options_.config,
       .dtype = options_.dtype,
       .recompute = Recompute::kFull,
       .overlaps = false,
       .sequence_length = tokens,
       .timeout = options_.timeout,
       .saved_slots = plan.saved.count,
       .head_slots = plan.heads.count,
       .activation_slots = plan.activations.count,
       .gradient_slots = 0,
       .cache = &cache_,
       .cached_logits = tokens > kMostLogits ? std::min(tokens, options_.sequences) : tokens,
       .workspace = &workspace_},
      weights.units, weights.store, {*communicators_.tp, *alone_.cp, *communicators_.ep}, device_,
      arena, staging);
  PipelineExecutor executor(*stage, *communicators_.pp, plan);
  shapes_.push_back({tokens, std::move(stage), std::move(executor)});
}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Make(
    const Options& options, const StateSource& weights, const CommunicatorSet& communicators,
    Device& device) {
  CONVENE_RETURN_IF_ERROR(ValidateModel(options.config, options.layout));
  const int positions = options.config.positions;
  if (positions > 0 && options.context > positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has learned ", positions, " positions, and the context is ",
                     options.context, " tokens: make it at most as long (--context)"));
  }
  CONVENE_ASSIGN_OR_RETURN(UnitsByChunk units, UnitsOfRank(options, communicators));
  auto own = std::make_unique<Own>(options, std::move(units), device);
  Own& memory = *own;
  auto model = std::make_unique<LanguageModel>(
      options, Weights{memory.units, memory.placement, memory.store}, communicators, device,
      memory.arena, memory.staging);
  model->own_ = std::move(own);
  absl::Status built = memory.arena.Build();
  built.Update(memory.staging.Build());
  if (absl::IsResourceExhausted(built)) {
    return Annotate(built,
                    "too little memory (a smaller --context, --max-new-tokens or --batch-size "
                    "needs less, and so do --precision bf16, --tp-size and --pp-size)");
  }
  CONVENE_RETURN_IF_ERROR(built);
  CONVENE_RETURN_IF_ERROR(memory.store.Load(weights));
  model->Bind();
  return model;
}

void LanguageModel::Bind() {
  cache_.Bind(device_);
  for (const Shape& shape : shapes_) shape.stage->Bind(At(losses_), /*exact=*/nullptr);
  host_tokens_.resize(tokens_.size());
  host_logits_.resize(gathered_.size());
  logits_.resize(size_t{1} * std::max(options_.sequences, std::min(largest_pass(), kMostLogits)) *
                 options_.config.vocabulary_size);
}

absl::StatusOr<const LanguageModel::Shape*> LanguageModel::Run(
    int tokens, std::vector<CachedRun> runs, const std::function<absl::Status()>& goes_on) {
  if (goes_on) {
    // A device that only queues its work would be asked for all passes at once.
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
    CONVENE_RETURN_IF_ERROR(goes_on());
  }
  Shape& shape = *std::find_if(shapes_.rbegin(), shapes_.rend(),
                               [&](const Shape& one) { return one.tokens >= tokens; });
  std::fill(host_tokens_.begin() + tokens, host_tokens_.begin() + shape.tokens, 0);
  cache_.SetRuns(std::move(runs));
  device_.Copy(host_tokens_.data(), At(tokens_), shape.tokens * sizeof(int32_t), device_.compute());
  shape.stage->SetBatch({.inputs = At(tokens_)});
  CONVENE_RETURN_IF_ERROR(shape.executor.Run(device_.compute()));
  return &shape;
}

absl::Status LanguageModel::GatherLogits(const Shape& shape, int tokens) {
  Collective& tp = *communicators_.tp;
  const size_t columns = options_.config.vocabulary_size / tp.size();
  const Elements own = shape.stage->logits().Slice(0, tokens * columns);
  const Elements all = {At(gathered_), own.count * tp.size(), own.dtype};
  device_.Copy(own.data, all.Slice(own.count * tp.rank(), own.count).data, own.size_bytes(),
               device_.compute());
  CONVENE_RETURN_IF_ERROR(tp.AllGather(all, device_.compute()));
  device_.Copy(all.data, host_logits_.data(), all.size_bytes(), device_.compute());
  return absl::OkStatus();
}

// From (tp, tokens, vocabulary slice) to (tokens, vocabulary).
void LanguageModel::SpreadLogits(int tokens, float* to) const {
  const int ranks = options_.layout.tp;
  const size_t columns = options_.config.vocabulary_size / ranks;
  const auto spread = [&]<typename T>(const T* gathered) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (int token = 0; token < tokens; ++token) {
        const T* const from = gathered + (size_t{1} * rank * tokens + token) * columns;
        std::transform(from, from + columns, to + (size_t{1} * token * ranks + rank) * columns,
                       [](T x) { return static_cast<float>(x); });
      }
    }
  };
  if (options_.dtype == DType::kFloat32) {
    spread(reinterpret_cast<const float*>(host_logits_.data()));
  } else {
    spread(reinterpret_cast<const BFloat16*>(host_logits_.data()));
  }
}

// Where there are more ranks than the tensor-parallel ones with the head, one rank's logits count
// for all: all ranks go on with the same tokens even where copies of a model round differently.
absl::Status LanguageModel::FetchLogits(const Shape& shape, int tokens, float* to) {
  if (has_head()) CONVENE_RETURN_IF_ERROR(GatherLogits(shape, tokens));
  const absl::Status done = device_.Synchronize(options_.timeout);
  // A collective's error about a peer is the cause of the device's.
  for (Collective* const collective : communicators_.OnDevice()) {
    CONVENE_RETURN_IF_ERROR(collective->Check());
  }
  CONVENE_RETURN_IF_ERROR(done);
  if (has_head()) SpreadLogits(tokens, to);
  Collective& host = *communicators_.host;
  if (host.size() == communicators_.tp->size()) return absl::OkStatus();
  const size_t count = size_t{1} * tokens * options_.config.vocabulary_size;
  return host.Broadcast(absl::MakeSpan(to, count), RankOf(options_.layout, {.pp = head_stage_}),
                        host_stream_);
}

absl::StatusOr<absl::Span<float>> LanguageModel::Extend(
    absl::Span<const NewTokens> texts, const std::function<absl::Status()>& goes_on) {
  CONVENE_CHECK(static_cast<int>(texts.size()) <= options_.sequences);
  const size_t columns = options_.config.vocabulary_size;
  size_t ended = 0;  // texts
  size_t taken = 0;  // tokens of the text behind them
  while (ended < texts.size()) {
    std::vector<CachedRun> runs;
    int tokens = 0;
    int ends = 0;
    for (size_t i = ended; i < texts.size() && tokens < largest_pass(); ++i) {
      const absl::Span<const int32_t> rest = texts[i].tokens.subspan(taken);
      const int count = std::min(static_cast<int>(rest.size()), largest_pass() - tokens);
      const bool is_end = count == static_cast<int>(rest.size());
      runs.push_back({.sequence = texts[i].sequence,
                      .begin = texts[i].position + static_cast<int>(taken),
                      .first = tokens,
                      .count = count,
                      .logits = is_end ? 1 : 0});
      std::copy_n(rest.begin(), count, host_tokens_.begin() + tokens);
      tokens += count;
      ends += is_end ? 1 : 0;
      taken = is_end ? 0 : taken + count;
    }
    CONVENE_ASSIGN_OR_RETURN(const Shape* const shape, Run(tokens, std::move(runs), goes_on));
    if (ends > 0) {
      CONVENE_RETURN_IF_ERROR(FetchLogits(*shape, ends, logits_.data() + ended * columns));
    }
    ended += ends;
  }
  return absl::MakeSpan(logits_).subspan(0, texts.size() * columns);
}

absl::Status LanguageModel::ExtendSeeingAll(int sequence, absl::Span<const int32_t> tokens,
                                            absl::FunctionRef<void(size_t, absl::Span<float>)> see,
                                            const std::function<absl::Status()>& goes_on) {
  const size_t columns = options_.config.vocabulary_size;
  for (size_t begin = 0; begin < tokens.size();) {
    const absl::Span<const int32_t> piece =
        tokens.subspan(begin, std::min(largest_pass(), kMostLogits));
    const int count = static_cast<int>(piece.size());
    std::copy(piece.begin(), piece.end(), host_tokens_.begin());
    CONVENE_ASSIGN_OR_RETURN(const Shape* const shape, Run(count,
                                                           {{.sequence = sequence,
                                                             .begin = static_cast<int>(begin),
                                                             .count = count,
                                                             .logits = count}},
                                                           goes_on));
    CONVENE_RETURN_IF_ERROR(FetchLogits(*shape, count, logits_.data()));
    for (int i = 0; i < count; ++i) {
      see(begin + i, absl::MakeSpan(logits_).subspan(i * columns, columns));
    }
    begin += count;
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
