#include "worker_runtime/model/block.h"

#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker {
namespace {

// Declares those tensors of a block that lie in the set, in the order of the forward pass.
template <typename T>
void Declare(const BlockShape& s, const Recompute& recompute, const SetDeclarer& declare,
             ResidualMemory<T>& memory, MixerMemory<T>& mixer, DenseMemory<T>& feed_forward,
             ExpertMemory<T>& experts) {
  const int64_t rows = s.rows();
  const int64_t own = s.residual_rows;
  const int statistics = NormStatistics(s.family->norm);
  const bool is_split = own < rows;
  const ArenaPart normed_part = is_split ? ArenaPart::kCollective : ArenaPart::kLocal;
  declare(memory.norm1, recompute.norms, true, "norm1", rows * s.hidden, normed_part);
  declare(memory.norm1_rms, false, false, "norm1 rms", own * statistics);
  DeclareMixer(s, recompute, declare, mixer);
  const auto declare_post = [&](ArenaBlock<T>& output, ArenaBlock<float>& rms, bool is_recomputed,
                                const char* name) {
    if (!s.family->post_norms) return;
    declare(output, is_recomputed, false, name, own * s.hidden);
    declare(rms, is_recomputed, false, "post norm rms", own * statistics);
  };
  declare_post(memory.mixed, memory.mixed_rms, recompute.middle, "mixed");
  declare(memory.middle, recompute.middle, false, "middle", own * s.hidden);
  if (is_split && declare.set() == MemorySet::kRecomputed) {
    memory.norm2 = memory.norm1;
  } else {
    declare(memory.norm2, recompute.norms, true, "norm2", rows * s.hidden, normed_part);
  }
  declare(memory.norm2_rms, false, false, "norm2 rms", own * statistics);
  DeclareDense(s, recompute, declare, feed_forward);
  DeclareExperts(s, recompute, declare, experts);
  declare_post(memory.fed, memory.fed_rms, false, "fed");
}

// The block's second part: a dense network, or experts.
template <typename T>
std::unique_ptr<BlockPart<T>> MakeFeedForward(const BlockShape& shape, const Recompute& recompute,
                                              std::vector<DenseMemory<T>> dense,
                                              std::vector<DenseDeferred<T>> deferred,
                                              std::vector<ExpertMemory<T>> experts,
                                              const BlockLinears<T>& linears, int chunks,
                                              Arena& staging) {
  if (!shape.experts.is_on()) {
    return std::make_unique<DenseFeedForward<T>>(shape, recompute, std::move(dense),
                                                 std::move(deferred), linears, chunks);
  }
  return std::make_unique<ExpertFeedForward<T>>(shape, recompute, std::move(experts),
                                                std::move(dense), std::move(deferred),
                                                linears.adapters, staging);
}

// One member of all elements.
template <typename Whole, typename Member>
std::vector<Member> Each(const std::vector<Whole>& all, Member Whole::*member) {
  std::vector<Member> members;
  for (const Whole& whole : all) members.push_back(whole.*member);
  return members;
}

template <typename T>
std::unique_ptr<BlockPart<T>> MakeMixer(const BlockShape& shape, const LayerAttention& layer,
                                        const Recompute& recompute,
                                        std::vector<MixerMemory<T>> memory,
                                        std::vector<MixerDeferred<T>> deferred,
                                        const BlockLinears<T>& linears) {
  if (shape.family->latent_attention) {
    return std::make_unique<LatentMixer<T>>(shape, layer, recompute, std::move(memory),
                                            std::move(deferred), linears.adapters);
  }
  return std::make_unique<GroupedQueryMixer<T>>(shape, layer, recompute, std::move(memory),
                                                std::move(deferred), linears);
}

}  // namespace

template <typename T>
BlockMemory<T> DeclareRecomputed(const BlockShape& shape, const Recompute& recompute,
                                 Arena& arena) {
  BlockMemory<T> memory;
  Declare(shape, recompute, SetDeclarer(MemorySet::kRecomputed, arena), memory.residual,
          memory.mixer, memory.feed_forward, memory.experts);
  return memory;
}

template <typename T>
std::vector<BlockMemory<T>> DeclareSaved(const BlockShape& shape, const Recompute& recompute,
                                         const BlockMemory<T>& recomputed, int slots,
                                         Arena& arena) {
  std::vector<BlockMemory<T>> memories(slots, recomputed);
  for (BlockMemory<T>& memory : memories) {
    Declare(shape, recompute, SetDeclarer(MemorySet::kSaved, arena), memory.residual, memory.mixer,
            memory.feed_forward, memory.experts);
  }
  return memories;
}

template <typename T>
std::vector<BlockDeferred<T>> DeclareDeferred(const BlockShape& s, const Recompute& recompute,
                                              int slots, Arena& arena) {
  const int64_t rows = s.rows();
  std::vector<BlockDeferred<T>> memories(slots);
  for (BlockDeferred<T>& memory : memories) {
    MixerDeferred<T>& mixer = memory.mixer;
    DenseDeferred<T>& dense = memory.feed_forward;
    ExpertMemory<T> of_experts;  // stays empty: their weight gradients wait for no half
    DeclareMixerGradients(s, arena, mixer);
    dense.gate_up = arena.Declare<T>("deferred/gate-up gradient", rows * s.gate_up_width());
    dense.down = arena.Declare<T>("deferred/down gradient", rows * s.hidden);
    Declare(s, recompute, SetDeclarer(MemorySet::kDeferred, arena), memory.factors, mixer.factors,
            dense.factors, of_experts);
  }
  return memories;
}

template <typename T>
Block<T>::Block(const BlockShape& shape, const LayerAttention& layer, const Recompute& recompute,
                const std::vector<BlockMemory<T>>& memory,
                const std::vector<BlockDeferred<T>>& deferred, const BlockLinears<T>& linears,
                int chunks, Arena& staging)
    : s_(shape),
      recompute_(recompute),
      memory_(Each(memory, &BlockMemory<T>::residual)),
      factors_(Each(deferred, &BlockDeferred<T>::factors)),
      linears_(linears),
      mixer_(MakeMixer(s_, layer, recompute_, Each(memory, &BlockMemory<T>::mixer),
                       Each(deferred, &BlockDeferred<T>::mixer), linears_)),
      feed_forward_(MakeFeedForward<T>(s_, recompute_, Each(memory, &BlockMemory<T>::feed_forward),
                                       Each(deferred, &BlockDeferred<T>::feed_forward),
                                       Each(memory, &BlockMemory<T>::experts), linears_, chunks,
                                       staging)) {}

template <typename T>
ScratchSizes Block<T>::scratch(DeviceKind device) const {
  ScratchSizes sizes = {
      .workspace_bytes = NormWorkspaceBytes(s_.family->norm, s_.residual_rows, s_.hidden, device)};
  sizes.Include(mixer_->scratch(device, feed_forward_->used_up_count()));
  sizes.Include(feed_forward_->scratch(device, 0));
  return sizes;
}

template <typename T>
ResidualMemory<T> Block<T>::MemoryOf(const Pass<T>& pass) const {
  ResidualMemory<T> a = memory_[pass.slot];
  if (pass.deferred < 0) return a;
  TakeDeferred(factors_[pass.deferred].norm1, a.norm1);
  TakeDeferred(factors_[pass.deferred].norm2, a.norm2);
  return a;
}

template <typename T>
absl::Status Block<T>::ScaleBranch(const Pass<T>& pass, T* output) const {
  ChunkedRows& rows = *pass.around.rows;
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.Finish(output, c, pass.stream));
    ScaleInPlace(static_cast<int64_t>(rows.chunk().own_count()), s_.branch_scale,
                 rows.Own(output, c), pass.stream);
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Block<T>::Behind(const Pass<T>& pass, const Norm<T>& norm, T* kept, T* output) const {
  if (s_.family->post_norms) {
    return NormDelta(norm, kept, output, *pass.around.rows, *pass.around.device, pass.stream);
  }
  return s_.branch_scale == 1 ? absl::OkStatus() : ScaleBranch(pass, output);
}

template <typename T>
absl::Status Block<T>::Middle(const Pass<T>& pass, const ResidualMemory<T>& a) const {
  T* const hidden = pass.around.hidden;
  CONVENE_RETURN_IF_ERROR(mixer_->Forward(pass, At(a.norm1), hidden));
  CONVENE_RETURN_IF_ERROR(
      Behind(pass, NormOf(pass, kAttentionPostNorm, -1, a.mixed_rms), At(a.mixed), hidden));
  return NormForward(NormOf(pass, kMlpNorm, kMlpNormBias, a.norm2_rms), pass.input, hidden,
                     At(a.middle), At(a.norm2), *pass.around.rows, pass.stream);
}

template <typename T>
absl::Status Block<T>::Forward(const Pass<T>& pass, T* target, Flow<T>& flow) {
  const ResidualMemory<T>& a = memory_[pass.slot];
  if (linears_.float8.is_on && (pass.is_first || !linears_.float8.keeps_weights)) {
    CONVENE_RETURN_IF_ERROR(RoundWeights(s_, linears_.float8, pass));
  }
  CONVENE_RETURN_IF_ERROR(NormForward(NormOf(pass, kAttentionNorm, kAttentionNormBias, a.norm1_rms),
                                      flow.residual, flow.delta, pass.input, At(a.norm1),
                                      *pass.around.rows, pass.stream));
  CONVENE_RETURN_IF_ERROR(Middle(pass, a));
  flow = {.residual = At(a.middle), .delta = target};
  CONVENE_RETURN_IF_ERROR(feed_forward_->Forward(pass, At(a.norm2), target));
  return Behind(pass, NormOf(pass, kMlpPostNorm, -1, a.fed_rms), At(a.fed), target);
}

// Each branch adds its gradient to the residual stream's, which passes through unchanged. A norm's
// output that comes again is gathered before the gradient where a product waits for it, else behind
// it.
template <typename T>
absl::Status Block<T>::BranchBackward(const Pass<T>& pass, const Branch& branch, T* gradient,
                                      absl::Span<T> spare) const {
  const UnitSurroundings<T>& around = pass.around;
  ChunkedRows& rows = *around.rows;
  if (branch.part_again) {
    if (branch.norm_again) {
      CONVENE_RETURN_IF_ERROR(NormAgain(branch.norm, branch.sum, branch.x, rows, pass.stream));
    }
    CONVENE_RETURN_IF_ERROR(branch.part.Again(pass, branch.x));
  }
  T* dy = gradient;
  if (s_.family->post_norms) {
    dy = around.branch;
    CONVENE_RETURN_IF_ERROR(NormBackward(branch.post_norm, branch.output, gradient,
                                         /*add_to_dx=*/false, dy, pass.Gradient(branch.post_tensor),
                                         WeightGradient{}, around.workspace, rows, pass.stream));
  } else if (s_.branch_scale != 1) {
    dy = around.branch;
    for (int c = 0; c < rows.chunks(); ++c) {
      around.device->Copy(rows.Own(gradient, c), rows.Own(dy, c),
                          rows.chunk().own_count() * sizeof(T), pass.stream);
    }
    CONVENE_RETURN_IF_ERROR(ScaleBranch(pass, dy));
  }
  CONVENE_RETURN_IF_ERROR(rows.StartGather(dy, pass.stream));
  if (branch.norm_again && !branch.part_again) {
    CONVENE_RETURN_IF_ERROR(NormAgain(branch.norm, branch.sum, branch.x, rows, pass.stream));
  }
  CONVENE_RETURN_IF_ERROR(branch.part.Backward(pass, branch.x, dy, around.hidden, spare));
  return NormBackward(branch.norm, branch.sum, around.hidden, /*add_to_dx=*/true, gradient,
                      pass.Gradient(branch.norm_tensor), pass.Gradient(branch.norm_bias),
                      around.workspace, rows, pass.stream);
}

template <typename T>
absl::Status Block<T>::Backward(const Pass<T>& pass, T* gradient) {
  const ResidualMemory<T> a = MemoryOf(pass);
  if (linears_.float8.is_on && !linears_.float8.keeps_weights) {
    CONVENE_RETURN_IF_ERROR(RoundWeights(s_, linears_.float8, pass));
  }
  const Norm<T> norm1 = NormOf(pass, kAttentionNorm, kAttentionNormBias, a.norm1_rms);
  // With the middle norm2's output comes again too, and so does all before it. Norm1's output lasts
  // where norm2's has another place.
  const bool made_middle = recompute_.middle;
  const bool shares_norms = pass.around.rows->is_split() && pass.deferred < 0;
  if (made_middle) {
    CONVENE_RETURN_IF_ERROR(
        NormAgain(norm1, pass.input, At(a.norm1), *pass.around.rows, pass.stream));
    CONVENE_RETURN_IF_ERROR(Middle(pass, a));
  }
  const Branch feed_forward = {.part = *feed_forward_,
                               .norm = NormOf(pass, kMlpNorm, kMlpNormBias, a.norm2_rms),
                               .norm_tensor = kMlpNorm,
                               .norm_bias = kMlpNormBias,
                               .sum = At(a.middle),
                               .x = At(a.norm2),
                               .norm_again = recompute_.norms && !made_middle,
                               .part_again = feed_forward_->starts_from_input(),
                               .post_tensor = kMlpPostNorm,
                               .post_norm = NormOf(pass, kMlpPostNorm, -1, a.fed_rms),
                               .output = At(a.fed)};
  const Branch mixer = {.part = *mixer_,
                        .norm = norm1,
                        .norm_tensor = kAttentionNorm,
                        .norm_bias = kAttentionNormBias,
                        .sum = pass.input,
                        .x = At(a.norm1),
                        .norm_again = recompute_.norms && (!made_middle || shares_norms),
                        .part_again = mixer_->starts_from_input() && !made_middle,
                        .post_tensor = kAttentionPostNorm,
                        .post_norm = NormOf(pass, kAttentionPostNorm, -1, a.mixed_rms),
                        .output = At(a.mixed)};
  CONVENE_RETURN_IF_ERROR(BranchBackward(pass, feed_forward, gradient, {}));
  return BranchBackward(pass, mixer, gradient, feed_forward_->used_up(pass));
}

template <typename T>
void Block<T>::BackwardWeight(const Pass<T>& pass) {
  const ResidualMemory<T> a = MemoryOf(pass);
  feed_forward_->BackwardWeight(pass, At(a.norm2));
  mixer_->BackwardWeight(pass, At(a.norm1));
}

CONVENE_INSTANTIATE(DeclareRecomputed);
CONVENE_INSTANTIATE(DeclareSaved);
CONVENE_INSTANTIATE(DeclareDeferred);
template class Block<float>;
template class Block<BFloat16>;

}  // namespace convene::worker
