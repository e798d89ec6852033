#include "worker_runtime/model/stage.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/model/loss_head.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/parallel/vocabulary.h"

namespace convene::worker {
namespace {

template <typename T>
class StageOf final : public Stage {
 public:
  StageOf(const Options& options, const ParameterTable& table, Collective& tp, Device& device,
          Arena& arena);

  void Bind(ConstElements parameters, absl::Span<float> gradients, double* loss_sum) override;
  void SetBatch(const StageBatch& batch) override { batch_ = batch; }

  absl::Status Forward(int microbatch, Stream& stream) override;
  absl::Status Backward(int microbatch, Stream& stream) override;
  Elements input(int microbatch) override { return Hidden(slot(microbatch).blocks.front().input); }
  Elements output(int microbatch) override { return Hidden(slot(microbatch).output); }
  Elements gradient(int microbatch) override { return Hidden(gradient_buffers_[microbatch % 2]); }

 private:
  // Declared blocks of the arena, then the pointers they become.
  struct BlockMemory {
    ArenaBlock<T> input, norm1, qkv, attention, middle, norm2, gate_up, product;
    ArenaBlock<float> norm1_rms, log_sum_exp, norm2_rms;
  };
  struct SlotMemory {
    std::vector<BlockMemory> blocks;
    // output: goes to the next stage, or is the residual stream's end.
    ArenaBlock<T> output, final_gradient;
    ArenaBlock<float> final_rms;
  };
  struct Slot {
    std::vector<BlockActivations<T>> blocks;
    T* output = nullptr;
    typename LossHead<T>::Activations loss;  // last stage
  };

  bool first() const { return options_.coordinate.pp == 0; }
  bool last() const { return options_.coordinate.pp == options_.layout.pp - 1; }
  Slot& slot(int microbatch) { return slots_[microbatch % slots_.size()]; }
  Elements Hidden(T* data) const {
    return {data, static_cast<size_t>(shape_.rows()) * shape_.hidden, kDTypeOf<T>};
  }
  const int32_t* InputsOf(int microbatch) const {
    return batch_.inputs + int64_t{microbatch} * shape_.rows();
  }
  const int32_t* TargetsOf(int microbatch) const {
    return batch_.targets + int64_t{microbatch} * shape_.rows();
  }
  void ParametersNeeded(int microbatch, int64_t flat_end) const {
    if (microbatch == 0 && batch_.observer != nullptr) batch_.observer->ParametersNeeded(flat_end);
  }
  absl::Status GradientsFinal(int microbatch, int64_t flat_begin) const {
    if (microbatch != batch_.microbatches - 1 || batch_.observer == nullptr) {
      return absl::OkStatus();
    }
    return batch_.observer->GradientsFinal(flat_begin);
  }
  BlockContext ContextOf(int microbatch) const {
    BlockContext context = context_;
    if (batch_.documents != nullptr) context.documents = batch_.documents[microbatch];
    return context;
  }
  WeightGradient GradientsOf(int microbatch) const {
    return {.data = gradients_, .adds = microbatch > 0};
  }
  typename LossHead<T>::Weights HeadWeights(int microbatch) const {
    const WeightGradient gradients = GradientsOf(microbatch);
    return {.norm = parameters_ + table_.final_norm,
            .head = parameters_ + table_.head,
            .norm_gradient = gradients.At(table_.final_norm),
            .head_gradient = gradients.At(table_.head)};
  }
  void EmbeddingGradient(int microbatch, const T* gradient, Stream& stream);

  void DeclareBlock(const std::string& prefix, bool is_shared, BlockMemory& memory);
  void DeclareSlot(const std::string& prefix, SlotMemory& memory);
  void DeclareScratch();
  BlockActivations<T> ActivationsOf(const BlockMemory& memory) const;
  void BindContext();

  const Options options_;
  const ParameterTable& table_;
  Collective& tp_;
  Device& device_;
  Arena& arena_;
  const BlockShape shape_;
  const VocabularySlice vocabulary_;

  BlockMemory shared_memory_;  // what is recomputed
  std::vector<SlotMemory> slot_memory_;
  ArenaBlock<T> gradient_memory_[2], hidden_memory_, wide_memory_, narrow_memory_;
  ArenaBlock<float> cosines_memory_, sines_memory_;
  ArenaBlock<char> workspace_memory_;
  size_t workspace_bytes_ = 0;
  std::optional<LossHead<T>> loss_head_;

  // Set by Bind.
  std::vector<Slot> slots_;
  BlockScratch<T> scratch_;
  std::optional<SideStream> side_stream_;
  BlockContext context_;
  T* gradient_buffers_[2] = {nullptr, nullptr};
  const T* parameters_ = nullptr;
  float* gradients_ = nullptr;
  double* loss_sum_ = nullptr;

  StageBatch batch_;
};

template <typename T>
StageOf<T>::StageOf(const Options& options, const ParameterTable& table, Collective& tp,
                    Device& device, Arena& arena)
    : options_(options),
      table_(table),
      tp_(tp),
      device_(device),
      arena_(arena),
      shape_(MakeBlockShape(options.config, options.layout.tp, options.micro_batch_size,
                            options.sequence_length, options.deterministic,
                            options.packed_documents)),
      vocabulary_(SliceVocabulary(options.config.vocabulary_size, options.layout.tp,
                                  options.coordinate.tp)),
      slot_memory_(options.slots) {
  DeclareBlock("recomputed/", /*is_shared=*/true, shared_memory_);
  for (SlotMemory& memory : slot_memory_) DeclareSlot("activations/", memory);
  DeclareScratch();
  if (!last()) return;
  loss_head_.emplace(LossHeadShape{.rows = shape_.rows(),
                                   .hidden = shape_.hidden,
                                   .vocabulary = vocabulary_,
                                   .norm_epsilon = shape_.norm_epsilon,
                                   .logits_bytes = LossLogitsBytes(device.kind())},
                     device.kind(), tp, arena);
}

// Each tensor is declared either for every block of every slot, or once, in the set of those that
// are recomputed.
template <typename T>
void StageOf<T>::DeclareBlock(const std::string& prefix, bool is_shared, BlockMemory& memory) {
  const int64_t rows = shape_.rows();
  const bool cheap_is_shared = options_.recompute != Recompute::kNone;
  const bool all_is_shared = options_.recompute == Recompute::kFull;
  const auto declare = [&]<typename E>(ArenaBlock<E>& block, bool belongs_to_shared,
                                       const char* name, int64_t width) {
    if (belongs_to_shared == is_shared) {
      block = arena_.Declare<E>(absl::StrCat(prefix, name), rows * width);
    }
  };
  declare(memory.norm1, cheap_is_shared, "norm1", shape_.hidden);
  declare(memory.norm1_rms, all_is_shared, "norm1 rms", 1);
  declare(memory.qkv, all_is_shared, "qkv", shape_.qkv_width());
  declare(memory.attention, all_is_shared, "attention", shape_.attention_width());
  declare(memory.log_sum_exp, all_is_shared, "log-sum-exp", shape_.heads);
  declare(memory.middle, all_is_shared, "middle", shape_.hidden);
  declare(memory.norm2, cheap_is_shared, "norm2", shape_.hidden);
  declare(memory.norm2_rms, all_is_shared, "norm2 rms", 1);
  declare(memory.gate_up, all_is_shared, "gate-up", 2 * int64_t{shape_.ffn});
  declare(memory.product, cheap_is_shared, "product", shape_.ffn);
}

template <typename T>
void StageOf<T>::DeclareSlot(const std::string& prefix, SlotMemory& memory) {
  const int64_t rows = shape_.rows();
  for (size_t i = 0; i < table_.blocks.size(); ++i) {
    // Shared tensors keep the shared set's blocks.
    memory.blocks.push_back(shared_memory_);
    DeclareBlock(prefix, /*is_shared=*/false, memory.blocks.back());
    // The first block's input is received, or summed over tp.
    memory.blocks.back().input =
        arena_.Declare<T>(prefix + "input", rows * shape_.hidden,
                          i == 0 ? ArenaPart::kCollective : ArenaPart::kLocal);
  }
  memory.output =
      arena_.Declare<T>(prefix + "output", rows * shape_.hidden, ArenaPart::kCollective);
  if (!last()) return;
  memory.final_rms = arena_.Declare<float>(prefix + "final norm rms", rows);
  memory.final_gradient = arena_.Declare<T>(prefix + "final norm gradient", rows * shape_.hidden,
                                            ArenaPart::kCollective);
}

template <typename T>
void StageOf<T>::DeclareScratch() {
  const int64_t rows = shape_.rows();
  for (ArenaBlock<T>& block : gradient_memory_) {
    block = arena_.Declare<T>("scratch/gradient", rows * shape_.hidden, ArenaPart::kCollective);
  }
  hidden_memory_ =
      arena_.Declare<T>("scratch/hidden", rows * shape_.hidden, ArenaPart::kCollective);
  wide_memory_ =
      arena_.Declare<T>("scratch/wide", rows * std::max(shape_.qkv_width(), 2 * shape_.ffn));
  narrow_memory_ =
      arena_.Declare<T>("scratch/narrow", rows * std::max(shape_.attention_width(), shape_.ffn));
  workspace_bytes_ =
      std::max(BlockWorkspaceBytes<T>(shape_, device_.kind()),
               EmbeddingWorkspaceBytes(shape_.rows(), shape_.hidden, device_.kind()));
  workspace_memory_ = arena_.Declare<char>("scratch/workspace", workspace_bytes_);
  const int64_t angles = int64_t{shape_.sequence_length} * shape_.head_size / 2;
  cosines_memory_ = arena_.Declare<float>("tables/rope cosines", angles);
  sines_memory_ = arena_.Declare<float>("tables/rope sines", angles);
}

template <typename T>
BlockActivations<T> StageOf<T>::ActivationsOf(const BlockMemory& memory) const {
  const auto at = [this](auto block) { return arena_.View(block).data(); };
  return {.input = at(memory.input),
          .norm1 = at(memory.norm1),
          .norm1_rms = at(memory.norm1_rms),
          .qkv = at(memory.qkv),
          .attention = at(memory.attention),
          .log_sum_exp = at(memory.log_sum_exp),
          .middle = at(memory.middle),
          .norm2 = at(memory.norm2),
          .norm2_rms = at(memory.norm2_rms),
          .gate_up = at(memory.gate_up),
          .product = at(memory.product)};
}

// The tables are computed on the host, once.
template <typename T>
void StageOf<T>::BindContext() {
  const absl::Span<float> cosines = arena_.View(cosines_memory_);
  const absl::Span<float> sines = arena_.View(sines_memory_);
  std::vector<float> host_cosines(cosines.size());
  std::vector<float> host_sines(sines.size());
  RopeTable(shape_.sequence_length, shape_.head_size, options_.config.rope_theta,
            host_cosines.data(), host_sines.data(), options_.config.rope_scaling);
  const size_t bytes = cosines.size() * sizeof(float);
  device_.Copy(host_cosines.data(), cosines.data(), bytes, device_.compute());
  device_.Copy(host_sines.data(), sines.data(), bytes, device_.compute());
  if (tp_.size() > 1) side_stream_.emplace(device_);
  context_ = {.rope_cosines = cosines.data(),
              .rope_sines = sines.data(),
              .tp = &tp_,
              .side = side_stream_.has_value() ? &*side_stream_ : nullptr,
              .recompute = options_.recompute,
              .documents = {}};
}

template <typename T>
void StageOf<T>::Bind(ConstElements parameters, absl::Span<float> gradients, double* loss_sum) {
  parameters_ = parameters.As<T>().data();
  gradients_ = gradients.data();
  loss_sum_ = loss_sum;
  const auto at = [this](auto block) { return arena_.View(block).data(); };
  for (const SlotMemory& memory : slot_memory_) {
    Slot slot;
    slot.output = at(memory.output);
    for (const BlockMemory& block : memory.blocks) slot.blocks.push_back(ActivationsOf(block));
    if (last()) slot.loss = {slot.output, at(memory.final_rms), at(memory.final_gradient)};
    slots_.push_back(std::move(slot));
  }
  for (int i = 0; i < 2; ++i) gradient_buffers_[i] = at(gradient_memory_[i]);
  scratch_ = {.hidden = at(hidden_memory_),
              .wide = at(wide_memory_),
              .narrow = at(narrow_memory_),
              .workspace = {at(workspace_memory_), workspace_bytes_}};
  BindContext();
  if (last()) loss_head_->Bind();
}

template <typename T>
absl::Status StageOf<T>::Forward(int microbatch, Stream& stream) {
  Slot& slot = this->slot(microbatch);
  const BlockContext context = ContextOf(microbatch);
  if (first()) {
    ParametersNeeded(microbatch, table_.BlockBegin(0));
    CONVENE_RETURN_IF_ERROR(VocabularyParallelEmbedding(
        vocabulary_, shape_.rows(), shape_.hidden, InputsOf(microbatch),
        parameters_ + table_.embedding, slot.blocks.front().input, tp_, stream));
  }
  BlockInput<T> input;
  for (size_t i = 0; i < slot.blocks.size(); ++i) {
    const BlockActivations<T>& block = slot.blocks[i];
    const bool leaves_stage = i + 1 == slot.blocks.size() && !last();
    T* const delta = leaves_stage ? slot.output : scratch_.hidden;
    ParametersNeeded(microbatch, table_.BlockBegin(i + 1));
    CONVENE_RETURN_IF_ERROR(BlockForward(shape_, context, table_.blocks[i], parameters_, input,
                                         block, scratch_, delta, stream));
    input = {.residual = block.middle, .delta = delta};
  }
  if (last()) {
    ParametersNeeded(microbatch, table_.flat_count);
    return loss_head_->Forward(HeadWeights(microbatch), input.residual, input.delta,
                               TargetsOf(microbatch), batch_.gradient_scale, slot.loss, loss_sum_,
                               stream);
  }
  AddInPlace(int64_t{shape_.rows()} * shape_.hidden, input.residual, slot.output, stream);
  return absl::OkStatus();
}

// A microbatch has few of the table's tokens, so the first one zeroes the whole table, unless the
// table is the head too, whose product has written every row.
template <typename T>
void StageOf<T>::EmbeddingGradient(int microbatch, const T* gradient, Stream& stream) {
  float* const table = gradients_ + table_.embedding;
  if (microbatch == 0 && table_.head != table_.embedding) {
    const OpScope scope(stream, "ZeroEmbeddingGradient");
    device_.Zero(table, sizeof(float) * vocabulary_.size() * shape_.hidden, stream);
  }
  EmbeddingBackward(shape_.rows(), shape_.hidden, vocabulary_.begin, vocabulary_.end,
                    InputsOf(microbatch), gradient, table, scratch_.workspace, stream);
}

template <typename T>
absl::Status StageOf<T>::Backward(int microbatch, Stream& stream) {
  Slot& slot = this->slot(microbatch);
  const BlockContext context = ContextOf(microbatch);
  T* const gradient = gradient_buffers_[microbatch % 2];
  if (last()) {
    loss_head_->Backward(HeadWeights(microbatch), slot.loss, gradient, stream);
    CONVENE_RETURN_IF_ERROR(GradientsFinal(microbatch, table_.BlockBegin(slot.blocks.size())));
  }
  for (size_t i = slot.blocks.size(); i-- > 0;) {
    CONVENE_RETURN_IF_ERROR(BlockBackward(shape_, context, table_.blocks[i], parameters_,
                                          GradientsOf(microbatch), slot.blocks[i], scratch_,
                                          gradient, stream));
    CONVENE_RETURN_IF_ERROR(GradientsFinal(microbatch, table_.BlockBegin(i)));
  }
  if (first()) EmbeddingGradient(microbatch, gradient, stream);
  return GradientsFinal(microbatch, 0);
}

}  // namespace

std::unique_ptr<Stage> Stage::Make(const Options& options, const ParameterTable& table,
                                   Collective& tp, Device& device, Arena& arena) {
  switch (options.dtype) {
    case DType::kFloat32:
      return std::make_unique<StageOf<float>>(options, table, tp, device, arena);
    case DType::kBFloat16:
      return std::make_unique<StageOf<BFloat16>>(options, table, tp, device, arena);
    case DType::kFloat64:
      break;
  }
  CONVENE_CHECK(false);
}

}  // namespace convene::worker
