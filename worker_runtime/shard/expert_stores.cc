#include "worker_runtime/shard/expert_stores.h"

#include <iterator>
#include <utility>

#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// The pieces of all of them, behind each other.
template <typename T, typename Call>
absl::StatusOr<std::vector<T>> Joined(const std::vector<ShardedOptimizer*>& all, const Call& call) {
  std::vector<T> joined;
  for (ShardedOptimizer* const optimizer : all) {
    CONVENE_ASSIGN_OR_RETURN(std::vector<T> pieces, call(*optimizer));
    std::move(pieces.begin(), pieces.end(), std::back_inserter(joined));
  }
  return joined;
}

}  // namespace

std::vector<UnitSpec> TensorsOf(const std::vector<UnitSpec>& units, bool of_experts) {
  std::vector<UnitSpec> kept;
  for (const UnitSpec& unit : units) {
    kept.push_back({.kind = unit.kind, .layer = unit.layer});
    for (const UnitTensor& tensor : unit.tensors) {
      if (tensor.of_experts == of_experts) kept.back().tensors.push_back(tensor);
    }
  }
  return kept;
}

ExpertStores::ExpertStores(const std::vector<UnitSpec>& units, BucketStore& dense,
                           BucketStore* experts)
    : all_{&dense} {
  if (experts != nullptr) all_.push_back(experts);
  for (const UnitSpec& unit : units) {
    std::vector<Place>& places = places_.emplace_back();
    int counts[2] = {};
    for (const UnitTensor& tensor : unit.tensors) {
      const int store = tensor.of_experts && experts != nullptr ? 1 : 0;
      places.push_back({store, counts[store]++});
    }
    weights_.emplace_back(places.size());
  }
}

absl::StatusOr<absl::Span<const void* const>> ExpertStores::Acquire(int unit) {
  if (all_.size() == 1) return all_.front()->Acquire(unit);
  absl::Span<const void* const> weights[2];
  for (size_t i = 0; i < 2; ++i) {
    CONVENE_ASSIGN_OR_RETURN(weights[i], all_[i]->Acquire(unit));
  }
  for (size_t i = 0; i < places_[unit].size(); ++i) {
    const Place& place = places_[unit][i];
    weights_[unit][i] = weights[place.store][place.tensor];
  }
  return weights_[unit];
}

void ExpertStores::Release(int unit) {
  for (BucketStore* const store : all_) store->Release(unit);
}

absl::Status ExpertStores::Prefetch(int unit) {
  for (BucketStore* const store : all_) CONVENE_RETURN_IF_ERROR(store->Prefetch(unit));
  return absl::OkStatus();
}

WeightGradient ExpertStores::Gradient(int unit, int tensor, bool is_first) {
  const Place& place = places_[unit][tensor];
  return all_[place.store]->Gradient(unit, place.tensor, is_first);
}

ArenaBlock<float> ExpertStores::IdleGradients(int unit) const {
  const ArenaBlock<float> dense = all_.front()->IdleGradients(unit);
  const ArenaBlock<float> experts = all_.back()->IdleGradients(unit);
  return experts.size() > dense.size() ? experts : dense;
}

absl::Status ExpertStores::GradientsDone(int unit, bool is_last) {
  for (BucketStore* const store : all_) {
    CONVENE_RETURN_IF_ERROR(store->GradientsDone(unit, is_last));
  }
  return absl::OkStatus();
}

absl::Status ExpertStores::FinishReducing() {
  for (BucketStore* const store : all_) CONVENE_RETURN_IF_ERROR(store->FinishReducing());
  return absl::OkStatus();
}

ExpertOptimizers::ExpertOptimizers(BucketStore& dense_store, ShardedOptimizer& dense,
                                   ShardedOptimizer* experts)
    : dense_(dense_store), all_{&dense} {
  if (experts != nullptr) all_.push_back(experts);
}

absl::Status ExpertOptimizers::Bind() {
  for (ShardedOptimizer* const optimizer : all_) CONVENE_RETURN_IF_ERROR(optimizer->Bind());
  return absl::OkStatus();
}

absl::Status ExpertOptimizers::SetWeights(ShardedOptimizer::MakeWeights make) {
  for (ShardedOptimizer* const optimizer : all_) {
    CONVENE_RETURN_IF_ERROR(optimizer->SetWeights(make));
  }
  return absl::OkStatus();
}

void ExpertOptimizers::SumOwnedSquares(double* sum) {
  for (ShardedOptimizer* const optimizer : all_) optimizer->SumOwnedSquares(sum);
}

absl::Status ExpertOptimizers::Update(const UpdateRule::Factors* factors,
                                      const StepControl* control) {
  for (ShardedOptimizer* const optimizer : all_) {
    // Its matrices' collectives are in compute(), beside which no gather of the other may run.
    if (optimizer != all_.front() && optimizer->moves_matrices()) dense_.AwaitCommunication();
    CONVENE_RETURN_IF_ERROR(optimizer->Update(factors, control));
  }
  return absl::OkStatus();
}

absl::Status ExpertOptimizers::CopyGradients() {
  for (ShardedOptimizer* const optimizer : all_) {
    CONVENE_RETURN_IF_ERROR(optimizer->CopyGradients());
  }
  return absl::OkStatus();
}

absl::Status ExpertOptimizers::UpdateOnHost(const UpdateRule::Factors& factors,
                                            const StepControl& control) {
  for (ShardedOptimizer* const optimizer : all_) {
    CONVENE_RETURN_IF_ERROR(optimizer->UpdateOnHost(factors, control));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PieceToWrite>> ExpertOptimizers::PiecesToWrite() {
  return Joined<PieceToWrite>(all_, [](ShardedOptimizer& own) { return own.PiecesToWrite(); });
}

absl::StatusOr<std::vector<PieceToRead>> ExpertOptimizers::PiecesToRead() {
  return Joined<PieceToRead>(all_, [](ShardedOptimizer& own) { return own.PiecesToRead(); });
}

absl::Status ExpertOptimizers::FinishRead() {
  for (ShardedOptimizer* const optimizer : all_) CONVENE_RETURN_IF_ERROR(optimizer->FinishRead());
  return absl::OkStatus();
}

}  // namespace convene::worker
