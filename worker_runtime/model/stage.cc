#include "worker_runtime/model/stage.h"

#include <optional>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/model/block.h"
#include "worker_runtime/model/embedding.h"
#include "worker_runtime/model/loss_head.h"
#include "worker_runtime/model/unit.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/rope.h"
#include "worker_runtime/parallel/vocabulary.h"

namespace convene::worker {
namespace {

template <typename T>
class StageOf final : public Stage {
 public:
  StageOf(const Options& options, const std::vector<UnitSpec>& specs, UnitStore& store,
          Collective& tp, Device& device, Arena& arena);

  void Bind(double* loss_sum) override;
  void SetBatch(const StageBatch& batch) override { batch_ = batch; }

  absl::Status Forward(int microbatch, Stream& stream) override;
  absl::Status Backward(int microbatch, Stream& stream) override;
  Elements input(int microbatch) override { return Hidden(Input(microbatch % options_.slots)); }
  Elements output(int microbatch) override { return Hidden(Output(microbatch % options_.slots)); }
  Elements gradient(int microbatch) override { return Hidden(rows_.Own(Gradient(microbatch))); }

 private:
  std::unique_ptr<Unit<T>> MakeUnit(UnitKind kind, const BlockMemory<T>& recomputed,
                                    ArenaPart input);
  void DeclareShared();
  void BindRopeTables();
  absl::StatusOr<Pass<T>> MakePass(int unit, int microbatch, Stream& stream);

  bool last() const { return options_.coordinate.pp == options_.layout.pp - 1; }
  Elements Hidden(T* data) const { return {data, rows_.own_count(), kDTypeOf<T>}; }
  template <typename E>
  E* At(ArenaBlock<E> block) const {
    return arena_.View(block).data();
  }
  T* Output(int slot) const { return At(output_memory_[slot]); }
  T* Gradient(int microbatch) const { return At(gradient_memory_[microbatch % 2]); }
  // Where the residual stream enters the first unit that keeps its input.
  T* Input(int slot) const;

  const Options options_;
  UnitStore& store_;
  Collective& tp_;
  Device& device_;
  Arena& arena_;
  const BlockShape shape_;
  const ResidualRows rows_;
  std::vector<std::unique_ptr<Unit<T>>> units_;

  std::vector<ArenaBlock<T>> output_memory_;  // by slot; goes to the next stage
  ArenaBlock<T> gradient_memory_[2], hidden_memory_, normed_memory_, wide_memory_, narrow_memory_;
  ArenaBlock<float> cosines_memory_, sines_memory_;
  ArenaBlock<char> workspace_memory_;
  ScratchSizes scratch_;

  // Set by Bind.
  std::optional<SideStream> side_stream_;
  UnitSurroundings<T> around_;
  double* loss_sum_ = nullptr;

  StageBatch batch_;
};

template <typename T>
StageOf<T>::StageOf(const Options& options, const std::vector<UnitSpec>& specs, UnitStore& store,
                    Collective& tp, Device& device, Arena& arena)
    : options_(options),
      store_(store),
      tp_(tp),
      device_(device),
      arena_(arena),
      shape_(MakeBlockShape(options.config, options.layout.tp, options.sequence_parallel,
                            options.micro_batch_size, options.sequence_length,
                            options.deterministic, options.packed_documents)),
      rows_(shape_.rows(), shape_.hidden, options.sequence_parallel, tp) {
  const BlockMemory<T> recomputed = DeclareRecomputed<T>(shape_, options_.recompute, arena_);
  // The first input is received, or summed over tp.
  ArenaPart input = ArenaPart::kCollective;
  for (const UnitSpec& spec : specs) {
    units_.push_back(MakeUnit(spec.kind, recomputed, input));
    scratch_.Include(units_.back()->scratch());
    if (spec.kind != UnitKind::kEmbedding) input = ArenaPart::kLocal;
  }
  DeclareShared();
}

template <typename T>
std::unique_ptr<Unit<T>> StageOf<T>::MakeUnit(UnitKind kind, const BlockMemory<T>& recomputed,
                                              ArenaPart input) {
  const VocabularySlice vocabulary =
      SliceVocabulary(options_.config.vocabulary_size, options_.layout.tp, options_.coordinate.tp);
  switch (kind) {
    case UnitKind::kEmbedding:
      return std::make_unique<Embedding<T>>(shape_.rows(), shape_.hidden, vocabulary,
                                            device_.kind());
    case UnitKind::kBlock:
      return std::make_unique<Block<T>>(shape_, options_.recompute, recomputed, input,
                                        options_.slots, device_.kind(), arena_);
    case UnitKind::kHead:
      return std::make_unique<LossHead<T>>(
          LossHeadShape{.rows = shape_.rows(),
                        .residual_rows = shape_.residual_rows,
                        .hidden = shape_.hidden,
                        .vocabulary = vocabulary,
                        .norm_epsilon = shape_.norm_epsilon,
                        .logits_bytes = LossLogitsBytes(device_.kind())},
          options_.slots, device_.kind(), arena_);
  }
  CONVENE_CHECK(false);
}

template <typename T>
void StageOf<T>::DeclareShared() {
  const int64_t hidden_count = int64_t{shape_.rows()} * shape_.hidden;
  for (int slot = 0; slot < options_.slots && !last(); ++slot) {
    output_memory_.push_back(
        arena_.Declare<T>("activations/output", rows_.own_count(), ArenaPart::kCollective));
  }
  for (ArenaBlock<T>& block : gradient_memory_) {
    block = arena_.Declare<T>("scratch/gradient", hidden_count, ArenaPart::kCollective);
  }
  hidden_memory_ = arena_.Declare<T>("scratch/hidden", hidden_count, ArenaPart::kCollective);
  normed_memory_ = arena_.Declare<T>("scratch/norm", rows_.is_split() ? hidden_count : 0,
                                     ArenaPart::kCollective);
  wide_memory_ = arena_.Declare<T>("scratch/wide", scratch_.wide);
  narrow_memory_ = arena_.Declare<T>("scratch/narrow", scratch_.narrow);
  workspace_memory_ = arena_.Declare<char>("scratch/workspace", scratch_.workspace_bytes);
  const int64_t angles = int64_t{shape_.sequence_length} * shape_.head_size / 2;
  cosines_memory_ = arena_.Declare<float>("tables/rope cosines", angles);
  sines_memory_ = arena_.Declare<float>("tables/rope sines", angles);
}

// The tables are computed on the host, once.
template <typename T>
void StageOf<T>::BindRopeTables() {
  const absl::Span<float> cosines = arena_.View(cosines_memory_);
  std::vector<float> host_cosines(cosines.size());
  std::vector<float> host_sines(cosines.size());
  RopeTable(shape_.sequence_length, shape_.head_size, options_.config.rope_theta,
            host_cosines.data(), host_sines.data(), options_.config.rope_scaling);
  const size_t bytes = cosines.size() * sizeof(float);
  device_.Copy(host_cosines.data(), cosines.data(), bytes, device_.compute());
  device_.Copy(host_sines.data(), At(sines_memory_), bytes, device_.compute());
}

template <typename T>
void StageOf<T>::Bind(double* loss_sum) {
  loss_sum_ = loss_sum;
  BindRopeTables();
  if (tp_.size() > 1) side_stream_.emplace(device_);
  around_ = {.device = &device_,
             .rows = &rows_,
             .side = side_stream_.has_value() ? &*side_stream_ : nullptr,
             .rope_cosines = At(cosines_memory_),
             .rope_sines = At(sines_memory_),
             .hidden = At(hidden_memory_),
             .normed = At(normed_memory_),
             .wide = At(wide_memory_),
             .narrow = At(narrow_memory_),
             .workspace = {At(workspace_memory_), scratch_.workspace_bytes}};
}

template <typename T>
T* StageOf<T>::Input(int slot) const {
  for (const auto& unit : units_) {
    if (T* const input = unit->Input(slot); input != nullptr) return input;
  }
  return Output(slot);
}

template <typename T>
absl::StatusOr<Pass<T>> StageOf<T>::MakePass(int unit, int microbatch, Stream& stream) {
  const int64_t row = int64_t{microbatch} * shape_.rows();
  CONVENE_ASSIGN_OR_RETURN(const auto weights, store_.Acquire(unit));
  return Pass<T>{
      .around = around_,
      .store = store_,
      .unit = unit,
      .slot = microbatch % options_.slots,
      .inputs = batch_.inputs + row,
      .targets = batch_.targets + row,
      .gradient_scale = batch_.gradient_scale,
      .loss_sum = loss_sum_,
      .documents = batch_.documents != nullptr ? batch_.documents[microbatch] : Documents{},
      .stream = stream,
      .weights = weights};
}

template <typename T>
absl::Status StageOf<T>::Forward(int microbatch, Stream& stream) {
  const int slot = microbatch % options_.slots;
  Flow<T> flow = {.residual = Input(slot)};
  for (size_t i = 0; i < units_.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const Pass<T> pass, MakePass(static_cast<int>(i), microbatch, stream));
    T* target = around_.hidden;
    if (units_[i]->Input(slot) == nullptr) {
      target = Input(slot);
    } else if (i + 1 == units_.size() && !last() && !rows_.is_split()) {
      target = Output(slot);
    }
    CONVENE_RETURN_IF_ERROR(units_[i]->Forward(pass, target, flow));
  }
  if (last() || flow.delta == nullptr) return absl::OkStatus();
  if (rows_.is_split()) {
    device_.Copy(flow.delta, Output(slot), rows_.own_count() * sizeof(T), stream);
  }
  AddInPlace(static_cast<int64_t>(rows_.own_count()), flow.residual, Output(slot), stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status StageOf<T>::Backward(int microbatch, Stream& stream) {
  const bool is_last = microbatch == batch_.microbatches - 1;
  for (int i = static_cast<int>(units_.size()) - 1; i >= 0; --i) {
    CONVENE_ASSIGN_OR_RETURN(const Pass<T> pass, MakePass(i, microbatch, stream));
    CONVENE_RETURN_IF_ERROR(units_[i]->Backward(pass, Gradient(microbatch)));
    CONVENE_RETURN_IF_ERROR(store_.GradientsDone(i, is_last));
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<Stage> Stage::Make(const Options& options, const std::vector<UnitSpec>& units,
                                   UnitStore& store, Collective& tp, Device& device, Arena& arena) {
  switch (options.dtype) {
    case DType::kFloat32:
      return std::make_unique<StageOf<float>>(options, units, store, tp, device, arena);
    case DType::kBFloat16:
      return std::make_unique<StageOf<BFloat16>>(options, units, store, tp, device, arena);
    case DType::kFloat64:
      break;
  }
  CONVENE_CHECK(false);
}

}  // namespace convene::worker
