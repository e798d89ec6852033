#include "worker_runtime/shard/rank_stores.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "tools/base/check.h"
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

StoreKind KindOf(const UnitTensor& tensor, bool splits_experts) {
  const bool is_apart = tensor.of_experts && splits_experts;
  if (tensor.is_frozen) return is_apart ? StoreKind::kFrozenExperts : StoreKind::kFrozen;
  return is_apart ? StoreKind::kExperts : StoreKind::kDense;
}

std::vector<UnitSpec> TensorsOf(const std::vector<UnitSpec>& units, StoreKind kind,
                                bool splits_experts) {
  std::vector<UnitSpec> kept;
  for (const UnitSpec& unit : units) {
    kept.push_back({.kind = unit.kind, .layer = unit.layer});
    for (const UnitTensor& tensor : unit.tensors) {
      if (KindOf(tensor, splits_experts) == kind) kept.back().tensors.push_back(tensor);
    }
  }
  return kept;
}

RankStores::RankStores(const std::vector<UnitSpec>& units, bool splits_experts,
                       const Stores& stores) {
  std::array<size_t, kStoreKinds> numbers = {};
  for (int kind = 0; kind < kStoreKinds; ++kind) {
    numbers[kind] = all_.size();
    if (stores[kind] != nullptr) all_.push_back(stores[kind]);
  }
  for (const UnitSpec& unit : units) {
    std::vector<Place>& places = places_.emplace_back();
    std::array<int, kStoreKinds> counts = {};
    for (const UnitTensor& tensor : unit.tensors) {
      const auto kind = static_cast<size_t>(KindOf(tensor, splits_experts));
      CONVENE_CHECK(stores[kind] != nullptr);
      places.push_back({numbers[kind], counts[kind]++});
    }
    weights_.emplace_back(places.size());
  }
}

absl::StatusOr<absl::Span<const void* const>> RankStores::Acquire(int unit) {
  if (all_.size() == 1) return all_.front()->Acquire(unit);
  absl::InlinedVector<absl::Span<const void* const>, kStoreKinds> weights;
  for (BucketStore* const store : all_) {
    CONVENE_ASSIGN_OR_RETURN(weights.emplace_back(), store->Acquire(unit));
  }
  for (size_t i = 0; i < places_[unit].size(); ++i) {
    const Place& place = places_[unit][i];
    weights_[unit][i] = weights[place.store][place.tensor];
  }
  return weights_[unit];
}

void RankStores::Release(int unit) {
  for (BucketStore* const store : all_) store->Release(unit);
}

absl::Status RankStores::Prefetch(int unit) {
  for (BucketStore* const store : all_) CONVENE_RETURN_IF_ERROR(store->Prefetch(unit));
  return absl::OkStatus();
}

WeightGradient RankStores::Gradient(int unit, int tensor, bool is_first) {
  const Place& place = places_[unit][tensor];
  return all_[place.store]->Gradient(unit, place.tensor, is_first);
}

ArenaBlock<float> RankStores::IdleGradients(int unit) const {
  ArenaBlock<float> most = all_.front()->IdleGradients(unit);
  for (const BucketStore* const store : all_) {
    const ArenaBlock<float> idle = store->IdleGradients(unit);
    if (idle.size() > most.size()) most = idle;
  }
  return most;
}

absl::Status RankStores::GradientsDone(int unit, bool is_last) {
  for (BucketStore* const store : all_) {
    CONVENE_RETURN_IF_ERROR(store->GradientsDone(unit, is_last));
  }
  return absl::OkStatus();
}

absl::Status RankStores::FinishReducing() {
  for (BucketStore* const store : all_) CONVENE_RETURN_IF_ERROR(store->FinishReducing());
  return absl::OkStatus();
}

RankOptimizers::RankOptimizers(BucketStore& dense_store, ShardedOptimizer& dense,
                               ShardedOptimizer* experts, std::vector<FrozenWeights> frozen)
    : dense_(dense_store), all_{&dense}, frozen_(std::move(frozen)) {
  if (experts != nullptr) all_.push_back(experts);
}

absl::Status RankOptimizers::Bind() {
  for (ShardedOptimizer* const optimizer : all_) CONVENE_RETURN_IF_ERROR(optimizer->Bind());
  return absl::OkStatus();
}

absl::Status RankOptimizers::SetWeights(WeightSet set, MakeWeights make,
                                        absl::FunctionRef<absl::Status()> filled) {
  const bool of_frozen = set != WeightSet::kLearning;
  const bool of_learning = set != WeightSet::kFrozen;
  for (const FrozenWeights& frozen : frozen_) {
    if (of_frozen) CONVENE_RETURN_IF_ERROR(frozen.Fill(make));
  }
  for (ShardedOptimizer* const optimizer : all_) {
    if (of_learning) CONVENE_RETURN_IF_ERROR(optimizer->FillWeights(make));
  }
  CONVENE_RETURN_IF_ERROR(filled());
  for (const FrozenWeights& frozen : frozen_) {
    if (of_frozen) CONVENE_RETURN_IF_ERROR(frozen.Publish());
  }
  for (ShardedOptimizer* const optimizer : all_) {
    if (of_learning) CONVENE_RETURN_IF_ERROR(optimizer->PublishMasters());
  }
  return absl::OkStatus();
}

void RankOptimizers::SumOwnedSquares(double* sum) {
  for (ShardedOptimizer* const optimizer : all_) optimizer->SumOwnedSquares(sum);
}

absl::Status RankOptimizers::Update(const UpdateRule::Factors* factors,
                                    const StepControl* control) {
  for (ShardedOptimizer* const optimizer : all_) {
    // Its matrices' collectives are in compute(), beside which no gather of the other may run.
    if (optimizer != all_.front() && optimizer->moves_matrices()) dense_.AwaitCommunication();
    CONVENE_RETURN_IF_ERROR(optimizer->Update(factors, control));
  }
  return absl::OkStatus();
}

absl::Status RankOptimizers::CopyGradients() {
  for (ShardedOptimizer* const optimizer : all_) {
    CONVENE_RETURN_IF_ERROR(optimizer->CopyGradients());
  }
  return absl::OkStatus();
}

absl::Status RankOptimizers::UpdateOnHost(const UpdateRule::Factors& factors,
                                          const StepControl& control) {
  for (ShardedOptimizer* const optimizer : all_) {
    CONVENE_RETURN_IF_ERROR(optimizer->UpdateOnHost(factors, control));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PieceToWrite>> RankOptimizers::PiecesToWrite() {
  return Joined<PieceToWrite>(all_, [](ShardedOptimizer& own) { return own.PiecesToWrite(); });
}

absl::StatusOr<std::vector<PieceToWrite>> RankOptimizers::PiecesInPlace() {
  return Joined<PieceToWrite>(all_, [](ShardedOptimizer& own) { return own.PiecesInPlace(); });
}

absl::StatusOr<std::vector<PieceToRead>> RankOptimizers::PiecesToRead() {
  return Joined<PieceToRead>(all_, [](ShardedOptimizer& own) { return own.PiecesToRead(); });
}

absl::Status RankOptimizers::FinishRead() {
  for (ShardedOptimizer* const optimizer : all_) CONVENE_RETURN_IF_ERROR(optimizer->FinishRead());
  return absl::OkStatus();
}

}  // namespace convene::worker
