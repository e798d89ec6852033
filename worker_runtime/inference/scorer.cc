#include "worker_runtime/inference/scorer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Each size of a pass has memory of its own, so there are none between the longest of these and a
// longer window.
constexpr int kShortestPass = 16;
constexpr int kLongestShorterPass = 1024;

// Falling.
std::vector<int> PassesOf(int window) {
  std::vector<int> passes = {window};
  for (int tokens = kLongestShorterPass; tokens >= kShortestPass; tokens /= 2) {
    if (tokens < window) passes.push_back(tokens);
  }
  return passes;
}

}  // namespace

Scorer::Scorer(const Options& options, const CommunicatorSet& communicators, Device& device)
    : options_(options),
      device_(device),
      arena_("evaluation", device.memory()),
      staging_("evaluation on the host", device.staging()),
      units_(UnitsOf(options.config, ChunksOf({options.config.layers}, {0})[0],
                     communicators.tp->size(), communicators.tp->rank())),
      store_(units_, options.dtype, device, arena_),
      tokens_(arena_.Declare<int32_t>("tokens", options.window)),
      targets_(arena_.Declare<int32_t>("targets", options.window)),
      losses_(arena_.Declare<double>("losses", 3)),
      host_tokens_(options.window),
      host_targets_(options.window) {
  // From the longest on, as its workspace has room for the others.
  for (const int tokens : PassesOf(options.window)) {
    stages_.push_back(
        {tokens, Stage::Make({.config = options.config,
                              .dtype = options.dtype,
                              .recompute = Recompute::kFull,
                              .overlaps = false,
                              .sequence_length = tokens,
                              .timeout = options.timeout,
                              .gradient_slots = 0,
                              .workspace = &workspace_},
                             {{0, units_}}, store_,
                             {*communicators.tp, *communicators.cp, *communicators.ep}, device,
                             arena_, staging_)});
  }
}

const Scorer::SizedStage& Scorer::StageFor(size_t tokens) const {
  return *std::find_if(stages_.rbegin(), stages_.rend(), [&](const SizedStage& one) {
    return static_cast<size_t>(one.tokens) >= tokens;
  });
}

absl::StatusOr<std::unique_ptr<Scorer>> Scorer::Make(const Options& options,
                                                     const StateSource& weights,
                                                     const CommunicatorSet& communicators,
                                                     Device& device) {
  Layout layout;
  layout.tp = communicators.tp->size();
  CONVENE_RETURN_IF_ERROR(ValidateModel(options.config, layout));
  const int positions = options.config.positions;
  if (options.window < 1 || (positions > 0 && options.window > positions)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a window of ", options.window, " tokens cannot be scored: ",
                     positions > 0 ? absl::StrCat("the model has learned ", positions, " positions")
                                   : "it has at least one",
                     " (--context)"));
  }
  std::unique_ptr<Scorer> scorer(new Scorer(options, communicators, device));
  absl::Status built = scorer->arena_.Build();
  built.Update(scorer->staging_.Build());
  if (absl::IsResourceExhausted(built)) {
    return Annotate(built,
                    "too little memory (a smaller --context and --precision bf16 need less)");
  }
  CONVENE_RETURN_IF_ERROR(built);
  CONVENE_RETURN_IF_ERROR(scorer->store_.Load(weights));
  for (const SizedStage& one : scorer->stages_) {
    one.stage->Bind(At(scorer->losses_), /*exact=*/nullptr);
  }
  return scorer;
}

absl::StatusOr<double> Scorer::Loss(absl::Span<const int32_t> tokens,
                                    absl::Span<const int32_t> targets) {
  const SizedStage& pass = StageFor(tokens.size());
  std::fill_n(host_tokens_.begin(), pass.tokens, 0);
  std::fill_n(host_targets_.begin(), pass.tokens, -1);
  std::copy(tokens.begin(), tokens.end(), host_tokens_.begin());
  std::copy(targets.begin(), targets.end(), host_targets_.begin());
  Stream& stream = device_.compute();
  const size_t bytes = pass.tokens * sizeof(int32_t);
  device_.Copy(host_tokens_.data(), At(tokens_), bytes, stream);
  device_.Copy(host_targets_.data(), At(targets_), bytes, stream);
  device_.Zero(At(losses_), losses_.size() * sizeof(double), stream);
  pass.stage->SetBatch({.inputs = At(tokens_), .targets = At(targets_)});
  CONVENE_RETURN_IF_ERROR(pass.stage->Run(
      {.compute = {ComputeKind::kForward, 0, 0}, .saved = 0, .head = 0, .is_first = true}, stream));
  double loss = 0;
  device_.Copy(At(losses_), &loss, sizeof(loss), stream);
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  return loss;
}

}  // namespace convene::worker
