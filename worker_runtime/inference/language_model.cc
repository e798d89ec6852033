#include "worker_runtime/inference/language_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/model/block_part.h"

namespace convene::worker {
namespace {

// The lengths of a prompt's passes. A shorter rest is filled up.
constexpr int kPromptLengths[] = {8, 32, 128};
// The most tokens of a pass that makes the logits of all of them: a vocabulary's width for each.
constexpr int kMostLogits = 32;

std::vector<UnitSpec> WholeModel(const ModelConfig& config, const Collective& tp) {
  return UnitsOf(config, ChunksOf({config.layers}, {0})[0], tp.size(), tp.rank());
}

KeyValueCache::Shape CacheShape(const LanguageModel::Options& options, int tp_size) {
  const BlockShape block = MakeBlockShape(options.config, tp_size, /*sequence_parallel=*/false, 1,
                                          1, /*deterministic=*/false, /*packed=*/false);
  return {.layers = options.config.layers,
          .sequences = options.sequences,
          .context = options.context,
          .width = 2 * block.kv_heads * block.head_size,
          .dtype = options.dtype};
}

}  // namespace

LanguageModel::LanguageModel(const Options& options, const CommunicatorSet& communicators,
                             Device& device)
    : options_(options),
      communicators_(communicators),
      device_(device),
      arena_("generation", device.memory()),
      units_(WholeModel(options.config, *communicators.tp)),
      store_(units_, options.dtype, device, arena_),
      cache_(CacheShape(options, communicators.tp->size()), arena_) {
  const int longest = std::max(2, std::min(options.prompt_tokens, options.context));
  for (const int length : kPromptLengths) {
    if (length < longest) AddShape(1, length);
  }
  AddShape(1, longest);
  for (int rows = 1; rows < options.sequences; rows *= 2) AddShape(rows, 1);
  AddShape(options.sequences, 1);
  const size_t rows_max = std::max(longest, options.sequences);
  const size_t logits = size_t{1} * std::max(options.sequences, std::min(longest, kMostLogits)) *
                        options.config.vocabulary_size;
  tokens_ = arena_.Declare<int32_t>("tokens", rows_max);
  losses_ = arena_.Declare<double>("losses", 3);
  gathered_ = arena_.Declare<char>("logits of all ranks", logits * SizeOf(options.dtype),
                                   ArenaPart::kCollective);
  host_tokens_.resize(rows_max);
  host_logits_.resize(gathered_.size());
  logits_.resize(logits);
}

void LanguageModel::AddShape(int rows, int length) {
  auto stage =
      Stage::Make({.config = options_.config,
                   .dtype = options_.dtype,
                   .recompute = Recompute::kFull,
                   .overlaps = false,
                   .micro_batch_size = rows,
                   .sequence_length = length,
                   .timeout = options_.timeout,
                   .gradient_slots = 0,
                   .cache = &cache_,
                   .cached_logits = length > kMostLogits ? 1 : length},
                  {{0, units_}}, store_,
                  {*communicators_.tp, *communicators_.cp, *communicators_.ep}, device_, arena_);
  (length > 1 ? prompts_ : steps_).push_back({rows, length, std::move(stage)});
}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Make(
    const Options& options, const StateSource& weights, const CommunicatorSet& communicators,
    Device& device) {
  Layout layout;
  layout.tp = communicators.tp->size();
  CONVENE_RETURN_IF_ERROR(ValidateModel(options.config, layout));
  const int positions = options.config.positions;
  if (positions > 0 && options.context > positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has learned ", positions, " positions, and the context is ",
                     options.context, " tokens: make it at most as long (--context)"));
  }
  std::unique_ptr<LanguageModel> model(new LanguageModel(options, communicators, device));
  CONVENE_RETURN_IF_ERROR(model->arena_.Build());
  CONVENE_RETURN_IF_ERROR(model->store_.Load(weights));
  model->cache_.Bind(device);
  for (std::vector<Shape>* const shapes : {&model->prompts_, &model->steps_}) {
    for (const Shape& shape : *shapes) shape.stage->Bind(At(model->losses_));
  }
  return model;
}

absl::Status LanguageModel::Run(const Shape& shape, std::vector<CachedRow> rows) {
  cache_.SetRows(std::move(rows));
  device_.Copy(host_tokens_.data(), At(tokens_),
               size_t{1} * shape.rows * shape.length * sizeof(int32_t), device_.compute());
  shape.stage->SetBatch({.inputs = At(tokens_)});
  return shape.stage->Run(
      {.compute = {ComputeKind::kForward, 0, 0}, .saved = 0, .head = 0, .is_first = true},
      device_.compute());
}

absl::StatusOr<absl::Span<float>> LanguageModel::Logits(const Shape& shape, int rows) {
  Collective& tp = *communicators_.tp;
  const size_t columns = options_.config.vocabulary_size / tp.size();
  const Elements own = shape.stage->logits().Slice(0, rows * columns);
  const Elements all = {At(gathered_), own.count * tp.size(), own.dtype};
  device_.Copy(own.data, all.Slice(own.count * tp.rank(), own.count).data, own.size_bytes(),
               device_.compute());
  CONVENE_RETURN_IF_ERROR(tp.AllGather(all, device_.compute()));
  device_.Copy(all.data, host_logits_.data(), all.size_bytes(), device_.compute());
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  const auto spread = [&]<typename T>(const T* gathered) {
    for (int rank = 0; rank < tp.size(); ++rank) {
      for (int row = 0; row < rows; ++row) {
        const T* const from = gathered + rank * own.count + row * columns;
        float* const to = logits_.data() + (size_t{1} * row * tp.size() + rank) * columns;
        std::transform(from, from + columns, to, [](T x) { return static_cast<float>(x); });
      }
    }
  };
  if (own.dtype == DType::kFloat32) {
    spread(reinterpret_cast<const float*>(host_logits_.data()));
  } else {
    spread(reinterpret_cast<const BFloat16*>(host_logits_.data()));
  }
  return absl::MakeSpan(logits_).subspan(0, size_t{1} * rows * options_.config.vocabulary_size);
}

const LanguageModel::Shape& LanguageModel::PromptShape(size_t tokens, int longest) const {
  const Shape* shape = &prompts_.front();
  for (const Shape& longer : prompts_) {
    if (longer.length > longest || shape->length >= static_cast<int>(tokens)) break;
    shape = &longer;
  }
  return *shape;
}

absl::StatusOr<int> LanguageModel::RunPrompt(const Shape& shape, int sequence, int position,
                                             absl::Span<const int32_t> tokens,
                                             bool wants_all_logits) {
  const int count = std::min(shape.length, static_cast<int>(tokens.size()));
  const bool is_last = count == static_cast<int>(tokens.size());
  std::fill_n(host_tokens_.begin(), shape.length, 0);
  std::copy_n(tokens.begin(), count, host_tokens_.begin());
  const int logits = wants_all_logits ? count : static_cast<int>(is_last);
  CONVENE_RETURN_IF_ERROR(Run(shape, {{sequence, position, count, logits}}));
  return count;
}

absl::StatusOr<absl::Span<float>> LanguageModel::Prefill(int sequence, int position,
                                                         absl::Span<const int32_t> tokens) {
  if (tokens.size() == 1) return Decode({{sequence, position, tokens[0]}});
  while (true) {
    const Shape& shape = PromptShape(tokens.size(), prompts_.back().length);
    CONVENE_ASSIGN_OR_RETURN(const int count, RunPrompt(shape, sequence, position, tokens, false));
    tokens.remove_prefix(count);
    position += count;
    if (tokens.empty()) return Logits(shape, 1);
  }
}

absl::Status LanguageModel::PrefillAll(int sequence, absl::Span<const int32_t> tokens,
                                       absl::FunctionRef<void(size_t, absl::Span<float>)> see) {
  const size_t columns = options_.config.vocabulary_size;
  for (size_t begin = 0; begin < tokens.size();) {
    const absl::Span<const int32_t> rest = tokens.subspan(begin);
    const Shape& shape = PromptShape(rest.size(), kMostLogits);
    CONVENE_ASSIGN_OR_RETURN(const int count,
                             RunPrompt(shape, sequence, static_cast<int>(begin), rest, true));
    CONVENE_ASSIGN_OR_RETURN(const absl::Span<float> logits, Logits(shape, count));
    for (int i = 0; i < count; ++i) see(begin + i, logits.subspan(i * columns, columns));
    begin += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<float>> LanguageModel::Decode(absl::Span<const NextToken> next) {
  const auto fits = [&](const Shape& shape) { return shape.rows >= static_cast<int>(next.size()); };
  const Shape& shape = *std::find_if(steps_.begin(), steps_.end(), fits);
  std::vector<CachedRow> rows(shape.rows);
  std::fill_n(host_tokens_.begin(), shape.rows, 0);
  for (size_t i = 0; i < next.size(); ++i) {
    rows[i] = {next[i].sequence, next[i].position, 1, 1};
    host_tokens_[i] = next[i].token;
  }
  CONVENE_RETURN_IF_ERROR(Run(shape, std::move(rows)));
  return Logits(shape, static_cast<int>(next.size()));
}

}  // namespace convene::worker
