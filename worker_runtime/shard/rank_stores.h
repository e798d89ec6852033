// All parameters of a rank and their optimizers, as one store and one optimizer. The tensors lie in
// up to four BucketStores: experts' tensors apart where expert-parallel ranks have other experts
// each, in a store over the ranks that have the same ones; and tensors that never change apart from
// those that learn. A plain run has one store.
//
// Each store keeps its own order between compute() and communication(); every rank calls them in
// one order, that of StoreKind.
#pragma once

#include <array>
#include <vector>

#include "absl/functional/function_ref.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/frozen_weights.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

enum class StoreKind { kDense, kExperts, kFrozen, kFrozenExperts };
inline constexpr int kStoreKinds = 4;
inline bool IsOfExperts(StoreKind kind) {
  return kind == StoreKind::kExperts || kind == StoreKind::kFrozenExperts;
}
inline bool IsFrozen(StoreKind kind) {
  return kind == StoreKind::kFrozen || kind == StoreKind::kFrozenExperts;
}

// `splits_experts`: expert-parallel ranks have other experts each.
StoreKind KindOf(const UnitTensor& tensor, bool splits_experts);
// The units with those of their tensors that are of the kind.
std::vector<UnitSpec> TensorsOf(const std::vector<UnitSpec>& units, StoreKind kind,
                                bool splits_experts);

// Not thread-safe. Borrows the stores.
class RankStores final : public UnitStore {
 public:
  // By kind; null: no tensor is of the kind. The dense one is never null. Each was made of
  // TensorsOf `units`.
  using Stores = std::array<BucketStore*, kStoreKinds>;
  RankStores(const std::vector<UnitSpec>& units, bool splits_experts, const Stores& stores);

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override;
  void Release(int unit) override;
  absl::Status Prefetch(int unit) override;
  WeightGradient Gradient(int unit, int tensor, bool is_first) override;
  // The store's that has most.
  ArenaBlock<float> IdleGradients(int unit) const override;
  absl::Status GradientsDone(int unit, bool is_last) override;
  // BucketStore's.
  absl::Status FinishReducing();

  const std::vector<BucketStore*>& all() const { return all_; }

 private:
  // Where a unit's tensor lies: its number among the unit's tensors in one of the stores.
  struct Place {
    size_t store = 0;
    int tensor = 0;
  };

  std::vector<BucketStore*> all_;
  std::vector<std::vector<Place>> places_;         // by unit and tensor
  std::vector<std::vector<const void*>> weights_;  // the same
};

// A choice of the parameters; kFrozen are none where all learn.
enum class WeightSet { kAll, kFrozen, kLearning };

// Not thread-safe. Borrows the optimizers, in the order of their stores.
class RankOptimizers final : public CheckpointedState {
 public:
  // `experts`: null: there are none of their own. `frozen`: of the stores without an optimizer.
  RankOptimizers(BucketStore& dense_store, ShardedOptimizer& dense, ShardedOptimizer* experts,
                 std::vector<FrozenWeights> frozen);

  // All as ShardedOptimizer's. A checkpoint has nothing of what is frozen.
  absl::Status Bind();
  // FillWeights, of all; then, once `filled` has returned, PublishMasters. An error of `filled` is
  // this call's, and nothing is published.
  absl::Status SetWeights(
      WeightSet set, MakeWeights make,
      absl::FunctionRef<absl::Status()> filled = [] { return absl::OkStatus(); });
  void SumOwnedSquares(double* sum);
  absl::Status Update(const UpdateRule::Factors* factors, const StepControl* control);
  absl::Status CopyGradients();
  absl::Status UpdateOnHost(const UpdateRule::Factors& factors, const StepControl& control);
  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite() override;
  absl::StatusOr<std::vector<PieceToWrite>> PiecesInPlace() override;
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead() override;
  absl::Status FinishRead() override;

 private:
  BucketStore& dense_;
  std::vector<ShardedOptimizer*> all_;
  std::vector<FrozenWeights> frozen_;
};

}  // namespace convene::worker
