// ZeRO: every data-parallel rank keeps the optimizer's state of its shard alone (fp32 master
// weights and what the update rule keeps), updates the shard, and has the parameters gathered back
// bucket by bucket, or where they are sharded too when they are needed (BucketStore).
#pragma once

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/device/arena.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/ops/update.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/shard/bucket_store.h"
#include "worker_runtime/shard/flat_shard.h"
#include "worker_runtime/shard/frozen_weights.h"
#include "worker_runtime/shard/whole_matrices.h"

namespace convene::worker {

// The state that a rank writes to checkpoints and reads from them.
class CheckpointedState {
 public:
  virtual ~CheckpointedState() = default;

  // This rank's state for a checkpoint, in host memory: master weights and the rule's state, of
  // owned parameters only. Waits for what is queued. Valid until the next step; with
  // copies_for_checkpoints until the next call of this function or of PiecesToRead, and any thread
  // may read it. Errors: the device's; DeadlineExceeded; FailedPrecondition on a GPU without
  // copies_for_checkpoints.
  virtual absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite() = 0;

  // The pieces of the rank's whole shard, where the state itself lies: on a GPU in its memory,
  // unless it is offloaded. Where several ranks have the same shard, each of them gives it
  // (PiecesToWrite: one of them). Valid until the next step. Makes no copy. Errors: the device's,
  // DeadlineExceeded.
  virtual absl::StatusOr<std::vector<PieceToWrite>> PiecesInPlace() = 0;

  // Pieces of all parameters that this rank needs to go on; the caller fills them. Then it calls
  // FinishRead, or this function again. All ranks of dp call it. Errors: as PiecesToWrite.
  virtual absl::StatusOr<std::vector<PieceToRead>> PiecesToRead() = 0;
  // The filled pieces become the state, and every rank gets all parameters.
  // Errors: the collective's.
  virtual absl::Status FinishRead() = 0;
};

// Not thread-safe. Borrows the references that its constructor takes.
class ShardedOptimizer final : public CheckpointedState {
 public:
  struct Options {
    const UpdateRule* rule = &AdamWRule();  // borrowed; one for whole matrices cannot be offloaded
    // A checkpoint is written from a copy of the shard in `staging`: of AdamW 12 bytes an element,
    // of Muon 8 for each element of a matrix.
    // Without it a GPU can write and read no checkpoint, unless it offloads; where the state lies
    // in host memory, the state itself is written, and the next step changes it.
    bool copies_for_checkpoints = false;
    // The state lies in host memory, and the host updates it beside the device: offload (Ren et al.
    // 2021, ZeRO-Offload, section 4). Checkpoints are then read into the state itself.
    bool offloads = false;
    // The store's shard of the parameters lies there too.
    bool offloads_parameters = false;
    float router_bias_rate = 0;  // RouterBiasStep's
    bool overlaps = true;        // false: the host has updated all when UpdateOnHost returns
    absl::Duration timeout = absl::Minutes(10);  // of each wait for the device
  };

  // Declares the optimizer's state in `arena`, which starts it as zeros, and the copy for
  // checkpoints in `staging`: host memory into and from which the device copies asynchronously.
  // Where the state is offloaded, all of it is in `staging`. Where the store's parameters are
  // kFloat32, and nothing is offloaded, they are the master weights.
  ShardedOptimizer(BucketStore& store, const Options& options, Device& device, Arena& arena,
                   Arena& staging);

  // Of the shard's state, without copies.
  size_t StateBytes() const;

  // Call it once both arenas are built and the store is bound. Errors: Device::Synchronize's.
  absl::Status Bind();

  // The weights of the shard become what `make` gives, which is called for each of them once, piece
  // by piece. No rank waits for another, as long as no update is under way. Errors: the device's,
  // those of an update that is still to be finished.
  absl::Status FillWeights(MakeWeights make);
  // Masters become weights, of all parts, and every rank gets all parameters. All ranks of dp call
  // it behind FillWeights. Errors: the collective's.
  absl::Status PublishMasters();

  // *sum (in the device's memory) += sum of squares of the reduced gradients in this shard, of the
  // parameters this rank owns: the ranks' sums add up to the global norm's square, each parameter
  // counted once.
  // The squares of a bucket are summed behind its reduction, where they can be
  // (BucketStore::IsFinalWhenReduced), else here; the buckets' sums are added up here, in order.
  // Where the store is_binned: sum[0 .. kExactDigits) = an exact sum (ExactSquares).
  void SumOwnedSquares(double* sum);

  // The rule on the shard, in BucketStore::UpdateStream; factors and control in the device's
  // memory, where they stay until BucketStore::FinishReducing of the next step. Each bucket's
  // parameters are gathered as soon as they are updated. A rule for whole matrices runs in
  // compute(), and gathers once all are. Errors: the collective's. REQUIRES: not offloaded.
  absl::Status Update(const UpdateRule::Factors* factors, const StepControl* control);
  // Whether Update has collectives in compute().
  bool moves_matrices() const { return options_.rule->matrices() != nullptr; }

  // The same where the state is offloaded, in two halves. First compute() copies the reduced
  // gradients to the host.
  absl::Status CopyGradients();
  // Then, once the caller has waited for these copies, the host begins to update one bucket after
  // the other, and whatever needs a bucket's parameters waits for that bucket alone
  // (BucketStore::BeginUpdate). The state is whole after BucketStore::FinishUpdate. Errors of both:
  // those of an update that is still to be finished: the device's, DeadlineExceeded, the
  // collective's.
  absl::Status UpdateOnHost(const UpdateRule::Factors& factors, const StepControl& control);

  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite() override;
  absl::StatusOr<std::vector<PieceToWrite>> PiecesInPlace() override;
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead() override;
  absl::Status FinishRead() override;

 private:
  // The copy in host memory, or the state itself.
  struct HostState {
    float* master = nullptr;  // null: the parameters themselves
    const std::vector<ArenaBlock<float>>* states = nullptr;
  };

  // Waits for an update that is under way, to read the state or to fill it.
  absl::Status AwaitState(bool fills_it);
  // `copies_it`: the copy becomes the state as it is now; else it is about to be filled.
  absl::StatusOr<HostState> State(bool copies_it);
  enum class CopyTo { kHost, kDevice };
  void CopyState(CopyTo direction);
  template <typename Piece>
  std::vector<Piece> Pieces(const HostState& state, bool owned_only) const;
  float* MasterOf(const ShardPart& part) const;
  // Reads pass through the copy too.
  bool reads_by_copy() const { return options_.copies_for_checkpoints && !options_.offloads; }
  bool has_masters() const { return options_.offloads || store_.dtype() != DType::kFloat32; }
  // The gradients of a part, and the place for its new weights, for the update.
  float* GradientsOf(const ShardPart& part) const;
  Elements WeightsOf(const ShardPart& part) const;
  void UpdatePart(const ShardPart& part, const UpdateRule::Factors* factors,
                  const StepControl* control, Stream& stream);
  // `call` gets elements [begin, begin + count) of the part.
  void WithPiece(const ShardPart& part, int64_t begin, int64_t count,
                 const UpdateRule::Factors* factors, const StepControl* control,
                 absl::FunctionRef<void(const UpdateRule::Piece&)> call);
  // The routers' biases that lie in the part, before the rule comes to it.
  void StepBiases(const ShardPart& part, const StepControl* control, Stream& stream);
  // Sums up the squares of one part.
  void SumSquares(const ShardPart& part, Stream& stream);
  // Updates all parts; matrices as wholes.
  absl::Status UpdateMatrices(const UpdateRule::Factors* factors, const StepControl* control);
  // Masters become weights.
  void Round(const ShardPart& part, Stream& stream);
  // Where the shard's element stands in the array of the rule's states()[state]: the rule keeps
  // some of them for elements of no matrix alone.
  int64_t PlaceIn(size_t state, int64_t shard_begin) const;
  // An array for each of the rule's states; all of one name, or each of the state's name.
  std::vector<ArenaBlock<float>> DeclareStates(const char* name, Arena& arena) const;
  // The part's weights, elsewhere than its parameters, become these. `stream`: the device's, that
  // made them.
  absl::Status Publish(size_t part, const Stream& stream);
  // Publishes what the host has updated, once it has.
  absl::Status PublishUpdated(size_t part);

  BucketStore& store_;
  const Options options_;
  Device& device_;
  const FlatShard& shard_;  // the store's
  WholeMatrices whole_matrices_;
  const std::vector<MatrixRun> runs_;
  const std::vector<ShardSegment> biases_;
  const ArenaBlock<float> master_;  // (shard_.count); empty where the parameters are the masters
  const std::vector<ArenaBlock<float>> states_;  // (PlaceIn(state, shard_.count))
  const ArenaBlock<uint8_t> flags_;
  const ArenaBlock<char> workspace_;     // of one sum of squares after the other
  const ArenaBlock<double> squares_;     // by part, or an exact sum's digits
  const ArenaBlock<float> master_copy_;  // for checkpoints, like state_copies_
  const std::vector<ArenaBlock<float>> state_copies_;
  // Where the state is offloaded.
  const ArenaBlock<uint8_t> host_flags_;
  const ArenaBlock<float> host_gradients_;  // (shard_.count)
  // Of parameters in bf16 that lie on the device: (shard_.count) or that of the first part.
  const ArenaBlock<BFloat16> host_weights_;
  UpdateRule::Factors host_factors_ = {};  // of the update under way
  StepControl host_control_ = {};
  std::vector<std::unique_ptr<Event>> updated_;  // by part, in host()
};

}  // namespace convene::worker
