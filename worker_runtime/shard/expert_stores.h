// A rank's parameters and their optimizers, where each expert-parallel rank has its own experts:
// the experts' tensors lie in a BucketStore over the ranks that have the same experts, all other
// tensors in one over all data-parallel ranks. Where every rank has all experts there is one store.
//
// Each store keeps its own order between compute() and communication(); every rank calls them in
// one order, the experts' last.
#pragma once

#include <vector>

#include "worker_runtime/model/parameters.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/shard/unit_store.h"

namespace convene::worker {

// The units with those of their tensors that are of experts, or with the others.
std::vector<UnitSpec> TensorsOf(const std::vector<UnitSpec>& units, bool of_experts);

// Not thread-safe. Borrows the stores. `units`: as both stores were made of.
class ExpertStores final : public UnitStore {
 public:
  // `experts`: null: there is one store.
  ExpertStores(const std::vector<UnitSpec>& units, BucketStore& dense, BucketStore* experts);

  absl::StatusOr<absl::Span<const void* const>> Acquire(int unit) override;
  void Release(int unit) override;
  absl::Status Prefetch(int unit) override;
  WeightGradient Gradient(int unit, int tensor, bool is_first) override;
  // The store's that has more.
  ArenaBlock<float> IdleGradients(int unit) const override;
  absl::Status GradientsDone(int unit, bool is_last) override;
  // BucketStore's.
  absl::Status FinishReducing();

  const std::vector<BucketStore*>& all() const { return all_; }

 private:
  // Where a unit's tensor lies: its number among the unit's tensors in one of the stores.
  struct Place {
    int store = 0;
    int tensor = 0;
  };

  std::vector<BucketStore*> all_;
  std::vector<std::vector<Place>> places_;         // by unit and tensor
  std::vector<std::vector<const void*>> weights_;  // the same
};

// Not thread-safe. Borrows the optimizers, of the stores in their order.
class ExpertOptimizers final : public CheckpointedState {
 public:
  ExpertOptimizers(BucketStore& dense_store, ShardedOptimizer& dense, ShardedOptimizer* experts);

  // All as ShardedOptimizer's.
  absl::Status Bind();
  absl::Status SetWeights(ShardedOptimizer::MakeWeights make);
  void SumOwnedSquares(double* sum);
  absl::Status Update(const UpdateRule::Factors* factors, const StepControl* control);
  absl::Status CopyGradients();
  absl::Status UpdateOnHost(const UpdateRule::Factors& factors, const StepControl& control);
  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite() override;
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead() override;
  absl::Status FinishRead() override;

 private:
  BucketStore& dense_;
  std::vector<ShardedOptimizer*> all_;
};

}  // namespace convene::worker
