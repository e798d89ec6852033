#include "worker_runtime/shard/sharded_optimizer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

TensorPiece PieceOf(const ParameterSlice& slice, const ShardSegment& segment,
                    const std::string& prefix) {
  return {.name = prefix + slice.name,
          .global_shape = {slice.global_shape[0], slice.global_shape[1]},
          .local_box = {.offset = {slice.offset[0], slice.offset[1]},
                        .extent = {slice.extent[0], slice.extent[1]}},
          .flat_begin = segment.slice_begin,
          .flat_count = segment.count};
}

size_t LargestWorkspaceBytes(const FlatShard& shard, DeviceKind device) {
  size_t largest = 0;
  for (const ShardPart& part : shard.parts) {
    largest = std::max(largest, SumOfSquaresWorkspaceBytes(part.count, device));
  }
  return largest;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(BucketStore& store, const Options& options, Device& device,
                                   Arena& arena, Arena& staging)
    : store_(store),
      options_(options),
      device_(device),
      arena_(arena),
      staging_(staging),
      shard_(store.shard()),
      workspace_bytes_(LargestWorkspaceBytes(shard_, device.kind())),
      master_memory_(
          arena.Declare<float>("optimizer/master weights", has_masters() ? shard_.count : 0)),
      first_moment_memory_(arena.Declare<float>("optimizer/first moment", shard_.count)),
      second_moment_memory_(arena.Declare<float>("optimizer/second moment", shard_.count)),
      flags_memory_(arena.Declare<uint8_t>("optimizer/flags", shard_.count / kFlagBlock)),
      workspace_memory_(arena.Declare<char>("optimizer/workspace", workspace_bytes_)),
      copy_memory_(staging.Declare<float>("copy for checkpoints",
                                          options.copies_for_checkpoints ? 3 * shard_.count : 0)) {}

void ShardedOptimizer::Bind() {
  if (has_masters()) master_ = arena_.View(master_memory_).data();
  first_moment_ = arena_.View(first_moment_memory_).data();
  second_moment_ = arena_.View(second_moment_memory_).data();
  const std::vector<uint8_t> flags =
      MakeParameterFlags(store_.placement(), shard_, store_.speaks_for_shard());
  uint8_t* const device_flags = arena_.View(flags_memory_).data();
  device_.Copy(flags.data(), device_flags, flags.size(), device_.compute());
  flags_ = device_flags;
  workspace_ = {arena_.View(workspace_memory_).data(), workspace_bytes_};
  copy_ = staging_.View(copy_memory_).data();
}

float* ShardedOptimizer::MasterOf(const ShardPart& part) const {
  return has_masters() ? master_ + part.shard_begin : store_.ParametersOf(part).As<float>().data();
}

void ShardedOptimizer::SetWeights(int64_t flat_begin, absl::Span<const float> values) {
  Stream& stream = device_.compute();
  if (!has_masters()) {
    store_.SetParameters(flat_begin, values);
    return;
  }
  const std::vector<BFloat16> rounded(values.begin(), values.end());
  store_.SetParameters(flat_begin, absl::MakeConstSpan(rounded));
  const int64_t flat_end = flat_begin + static_cast<int64_t>(values.size());
  for (const ShardPart& part : shard_.parts) {
    const int64_t begin = std::max(flat_begin, part.flat_begin);
    const int64_t end = std::min(flat_end, part.flat_begin + part.count);
    if (begin >= end) continue;
    device_.Copy(values.data() + (begin - flat_begin), MasterOf(part) + (begin - part.flat_begin),
                 (end - begin) * sizeof(float), stream);
  }
}

void ShardedOptimizer::SumOwnedSquares(double* sum) {
  for (const ShardPart& part : shard_.parts) {
    SumOfSquares(part.count, store_.GradientsOf(part).data(),
                 flags_ + part.shard_begin / kFlagBlock, sum, workspace_, device_.compute());
  }
}

absl::Status ShardedOptimizer::Update(const AdamWFactors* factors, const StepControl* control) {
  Stream& stream = device_.compute();
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    const ShardPart& part = shard_.parts[i];
    const float* const gradients = store_.GradientsOf(part).data();
    const uint8_t* const flags = flags_ + part.shard_begin / kFlagBlock;
    float* const master = MasterOf(part);
    float* const first_moment = first_moment_ + part.shard_begin;
    float* const second_moment = second_moment_ + part.shard_begin;
    if (has_masters()) {
      AdamW(part.count, factors, control, flags, gradients, master,
            store_.ParametersOf(part).As<BFloat16>().data(), first_moment, second_moment, stream);
    } else {
      AdamW(part.count, factors, control, flags, gradients, master, master, first_moment,
            second_moment, stream);
    }
    CONVENE_RETURN_IF_ERROR(store_.Updated(i));
  }
  return store_.CopyToOtherEnd();
}

// Queues all copies at once, without a wait between them.
void ShardedOptimizer::QueueCopies(CopyTo direction) {
  const auto copy = [&](float* state, float* copy, int64_t count) {
    if (direction == CopyTo::kDevice) std::swap(state, copy);
    device_.Copy(state, copy, count * sizeof(float), device_.compute());
  };
  for (const ShardPart& part : shard_.parts) {
    copy(MasterOf(part), copy_ + part.shard_begin, part.count);
  }
  copy(first_moment_, copy_ + shard_.count, shard_.count);
  copy(second_moment_, copy_ + 2 * shard_.count, shard_.count);
}

absl::StatusOr<ShardedOptimizer::HostState> ShardedOptimizer::State(bool copies_it) {
  if (options_.copies_for_checkpoints) {
    if (copies_it) {
      store_.AwaitCommunication();
      QueueCopies(CopyTo::kHost);
    }
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
    return HostState{.master = copy_,
                     .first_moment = copy_ + shard_.count,
                     .second_moment = copy_ + 2 * shard_.count};
  }
  if (device_.kind() != DeviceKind::kCpu) {
    return absl::FailedPreconditionError(
        "no host memory was planned for checkpoints (EngineOptions::copies_for_checkpoints)");
  }
  return HostState{
      .master = master_, .first_moment = first_moment_, .second_moment = second_moment_};
}

template <typename Piece>
std::vector<Piece> ShardedOptimizer::Pieces(const HostState& state, bool owned_only) const {
  std::vector<Piece> pieces;
  for (const ShardSegment& segment : shard_.segments) {
    const ParameterSlice& slice = store_.placement().parameters[segment.parameter];
    if (owned_only && !slice.owned) continue;
    const ShardPart& part = shard_.parts[segment.part];
    float* const master = state.master != nullptr
                              ? state.master + segment.shard_begin
                              : MasterOf(part) + segment.flat_begin - part.flat_begin;
    pieces.push_back({PieceOf(slice, segment, ""), master});
    pieces.push_back({PieceOf(slice, segment, "optimizer.first_moment/"),
                      state.first_moment + segment.shard_begin});
    pieces.push_back({PieceOf(slice, segment, "optimizer.second_moment/"),
                      state.second_moment + segment.shard_begin});
  }
  return pieces;
}

absl::StatusOr<std::vector<PieceToWrite>> ShardedOptimizer::PiecesToWrite() {
  CONVENE_ASSIGN_OR_RETURN(const HostState state, State(/*copies_it=*/true));
  if (!store_.speaks_for_shard()) return std::vector<PieceToWrite>();
  return Pieces<PieceToWrite>(state, /*owned_only=*/true);
}

absl::StatusOr<std::vector<PieceToRead>> ShardedOptimizer::PiecesToRead() {
  CONVENE_ASSIGN_OR_RETURN(const HostState state, State(/*copies_it=*/false));
  return Pieces<PieceToRead>(state, /*owned_only=*/false);
}

absl::Status ShardedOptimizer::FinishRead() {
  store_.AwaitCommunication();
  Stream& stream = device_.compute();
  if (options_.copies_for_checkpoints) QueueCopies(CopyTo::kDevice);
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    const ShardPart& part = shard_.parts[i];
    if (has_masters()) {
      ToBFloat16(part.count, MasterOf(part), store_.ParametersOf(part).As<BFloat16>().data(),
                 stream);
    }
    CONVENE_RETURN_IF_ERROR(store_.Updated(i));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
