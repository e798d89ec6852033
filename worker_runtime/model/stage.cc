#include "worker_runtime/model/stage.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {

Stage::Stage(const Options& options, const ParameterTable& table, Collective& tp, Arena& arena)
    : options_(options),
      table_(table),
      tp_(tp),
      arena_(arena),
      shape_(MakeBlockShape(options.config, options.layout.tp, options.micro_batch_size,
                            options.sequence_length)),
      vocabulary_(SliceVocabulary(options.config.vocabulary_size, options.layout.tp,
                                  options.coordinate.tp)),
      slot_memory_(options.slots) {
  for (size_t i = 0; i < slot_memory_.size(); ++i) {
    DeclareSlot(absl::StrCat("activations/slot ", i, "/"), slot_memory_[i]);
  }
  DeclareScratch();
}

ArenaBlock<float> Stage::Declare(const std::string& name, int64_t count) {
  return arena_.Declare<float>(name, count);
}

void Stage::DeclareSlot(const std::string& prefix, SlotMemory& memory) {
  const int64_t rows = shape_.rows();
  for (size_t i = 0; i < table_.blocks.size(); ++i) {
    const std::string block = absl::StrCat(prefix, "layer ", table_.first_layer + i, "/");
    memory.blocks.push_back({
        .input = Declare(block + "input", rows * shape_.hidden),
        .norm1 = Declare(block + "norm1", rows * shape_.hidden),
        .norm1_rms = Declare(block + "norm1 rms", rows),
        .qkv = Declare(block + "qkv", rows * shape_.qkv_width()),
        .attention = Declare(block + "attention", rows * shape_.attention_width()),
        .log_sum_exp = Declare(block + "log-sum-exp", rows * shape_.heads),
        .middle = Declare(block + "middle", rows * shape_.hidden),
        .norm2 = Declare(block + "norm2", rows * shape_.hidden),
        .norm2_rms = Declare(block + "norm2 rms", rows),
        .gate_up = Declare(block + "gate-up", rows * 2 * shape_.ffn),
        .product = Declare(block + "product", rows * shape_.ffn),
    });
  }
  memory.output = Declare(prefix + "output", rows * shape_.hidden);
  if (!last()) return;
  memory.final_norm = Declare(prefix + "final norm", rows * shape_.hidden);
  memory.final_rms = Declare(prefix + "final norm rms", rows);
  memory.logits = Declare(prefix + "logits", rows * vocabulary_.size());
}

void Stage::DeclareScratch() {
  const int64_t rows = shape_.rows();
  for (ArenaBlock<float>& block : gradient_memory_) {
    block = Declare("scratch/gradient", rows * shape_.hidden);
  }
  hidden_memory_ = Declare("scratch/hidden", rows * shape_.hidden);
  wide_memory_ = Declare("scratch/wide", rows * std::max(shape_.qkv_width(), 2 * shape_.ffn));
  narrow_memory_ = Declare("scratch/narrow", rows * std::max(shape_.attention_width(), shape_.ffn));
  attention_memory_ = Declare("scratch/attention", AttentionWorkspace(shape_.attention()));
  const int64_t angles = int64_t{shape_.sequence_length} * shape_.head_size / 2;
  cosines_memory_ = Declare("tables/rope cosines", angles);
  sines_memory_ = Declare("tables/rope sines", angles);
  if (!last()) return;
  row_max_memory_ = Declare("scratch/row maxima", rows);
  sums_memory_ = Declare("scratch/loss sums", 2 * rows);
}

void Stage::Bind(const float* parameters, float* gradients) {
  parameters_ = parameters;
  gradients_ = gradients;
  const auto at = [this](ArenaBlock<float> block) { return arena_.View(block).data(); };
  for (const SlotMemory& memory : slot_memory_) {
    Slot slot;
    slot.output = at(memory.output);
    for (const BlockMemory& h : memory.blocks) {
      slot.blocks.push_back({at(h.input), at(h.norm1), at(h.norm1_rms), at(h.qkv), at(h.attention),
                             at(h.log_sum_exp), at(h.middle), at(h.norm2), at(h.norm2_rms),
                             at(h.gate_up), at(h.product)});
    }
    if (last()) {
      slot.final_norm = at(memory.final_norm);
      slot.final_rms = at(memory.final_rms);
      slot.logits = at(memory.logits);
    }
    slots_.push_back(std::move(slot));
  }
  for (int i = 0; i < 2; ++i) gradient_buffers_[i] = at(gradient_memory_[i]);
  scratch_ = {at(hidden_memory_), at(wide_memory_), at(narrow_memory_), at(attention_memory_)};
  RopeTable(shape_.sequence_length, shape_.head_size, options_.config.rope_theta,
            at(cosines_memory_), at(sines_memory_));
  context_ = {at(cosines_memory_), at(sines_memory_), &tp_};
  if (last()) loss_buffers_ = {at(row_max_memory_), at(sums_memory_)};
}

void Stage::SetBatch(const TokenBatch& batch) {
  batch_ = batch;
  loss_sum_ = 0;
}

const int32_t* Stage::InputsOf(int microbatch) const {
  return batch_.inputs + int64_t{microbatch} * shape_.rows();
}

const int32_t* Stage::TargetsOf(int microbatch) const {
  return batch_.targets + int64_t{microbatch} * shape_.rows();
}

absl::Span<float> Stage::input(int microbatch) {
  return absl::MakeSpan(slot(microbatch).blocks.front().input,
                        static_cast<size_t>(shape_.rows()) * shape_.hidden);
}

absl::Span<float> Stage::output(int microbatch) {
  return absl::MakeSpan(slot(microbatch).output,
                        static_cast<size_t>(shape_.rows()) * shape_.hidden);
}

absl::Span<float> Stage::gradient(int microbatch) {
  return absl::MakeSpan(gradient_buffers_[microbatch % 2],
                        static_cast<size_t>(shape_.rows()) * shape_.hidden);
}

absl::Status Stage::Forward(int microbatch, Stream& stream) {
  Slot& slot = this->slot(microbatch);
  if (first()) {
    CONVENE_RETURN_IF_ERROR(VocabularyParallelEmbedding(
        vocabulary_, shape_.rows(), shape_.hidden, InputsOf(microbatch),
        parameters_ + table_.embedding, slot.blocks.front().input, tp_, stream));
  }
  for (size_t i = 0; i < slot.blocks.size(); ++i) {
    float* y = i + 1 < slot.blocks.size() ? slot.blocks[i + 1].input : slot.output;
    CONVENE_RETURN_IF_ERROR(BlockForward(shape_, context_, table_.blocks[i], parameters_,
                                         slot.blocks[i], y, scratch_.attention_workspace, stream));
  }
  return last() ? ForwardLoss(microbatch, slot, stream) : absl::OkStatus();
}

absl::Status Stage::ForwardLoss(int microbatch, Slot& slot, Stream& stream) {
  const int rows = shape_.rows();
  RmsNormForward(rows, shape_.hidden, slot.output, parameters_ + table_.final_norm,
                 shape_.norm_epsilon, slot.final_norm, slot.final_rms, stream);
  ColumnParallelForward({rows, vocabulary_.size(), shape_.hidden}, slot.final_norm,
                        parameters_ + table_.head, slot.logits, stream);
  CONVENE_ASSIGN_OR_RETURN(const double loss,
                           VocabularyParallelCrossEntropy(vocabulary_, rows, TargetsOf(microbatch),
                                                          batch_.gradient_scale, loss_buffers_,
                                                          slot.logits, tp_, stream));
  loss_sum_ += loss;
  return absl::OkStatus();
}

absl::Status Stage::BackwardLoss(Slot& slot, float* gradient, Stream& stream) {
  const int rows = shape_.rows();
  CONVENE_RETURN_IF_ERROR(ColumnParallelBackward(
      {rows, vocabulary_.size(), shape_.hidden}, slot.final_norm, parameters_ + table_.head,
      slot.logits, scratch_.hidden, gradients_ + table_.head, tp_, stream));
  std::fill_n(gradient, int64_t{rows} * shape_.hidden, 0.0f);
  RmsNormBackward(rows, shape_.hidden, slot.output, parameters_ + table_.final_norm, slot.final_rms,
                  scratch_.hidden, gradient, gradients_ + table_.final_norm, stream);
  return absl::OkStatus();
}

absl::Status Stage::Backward(int microbatch, Stream& stream) {
  Slot& slot = this->slot(microbatch);
  float* gradient = gradient_buffers_[microbatch % 2];
  if (last()) CONVENE_RETURN_IF_ERROR(BackwardLoss(slot, gradient, stream));
  for (size_t i = slot.blocks.size(); i-- > 0;) {
    CONVENE_RETURN_IF_ERROR(BlockBackward(shape_, context_, table_.blocks[i], parameters_,
                                          gradients_, slot.blocks[i], scratch_, gradient, stream));
  }
  if (first()) {
    EmbeddingBackward(shape_.rows(), shape_.hidden, vocabulary_.begin, vocabulary_.end,
                      InputsOf(microbatch), gradient, gradients_ + table_.embedding, stream);
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
