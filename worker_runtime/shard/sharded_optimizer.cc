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
      shard_(store.shard()),
      master_((options.offloads ? staging : arena)
                  .Declare<float>("optimizer/master weights", has_masters() ? shard_.count : 0)),
      first_moment_((options.offloads ? staging : arena)
                        .Declare<float>("optimizer/first moment", shard_.count)),
      second_moment_((options.offloads ? staging : arena)
                         .Declare<float>("optimizer/second moment", shard_.count)),
      flags_(arena.Declare<uint8_t>("optimizer/flags", shard_.count / kFlagBlock)),
      workspace_(
          arena.Declare<char>("optimizer/workspace", LargestWorkspaceBytes(shard_, device.kind()))),
      copy_(staging.Declare<float>("copy for checkpoints", copies() ? 3 * shard_.count : 0)),
      host_gradients_(
          staging.Declare<float>("optimizer/gradients", options.offloads ? shard_.count : 0)),
      host_weights_(staging.Declare<BFloat16>(
          "optimizer/new weights",
          options.offloads && store.dtype() == DType::kBFloat16 ? shard_.count : 0)),
      host_factors_(staging.Declare<AdamWFactors>("optimizer/factors", options.offloads)),
      host_control_(staging.Declare<StepControl>("optimizer/control", options.offloads)) {
  if (!options.offloads) return;
  for (size_t i = 0; i < shard_.parts.size(); ++i) on_host_.push_back(device.MakeEvent());
}

void ShardedOptimizer::Bind() {
  host_flags_ = MakeParameterFlags(store_.placement(), shard_, store_.speaks_for_shard());
  device_.Copy(host_flags_.data(), At(flags_), host_flags_.size(), device_.compute());
}

float* ShardedOptimizer::MasterOf(const ShardPart& part) const {
  return has_masters() ? At(master_) + part.shard_begin
                       : store_.ParametersOf(part).As<float>().data();
}

void ShardedOptimizer::SetWeights(int64_t flat_begin, absl::Span<const float> values) {
  Stream& stream = device_.compute();
  if (store_.dtype() == DType::kFloat32) {
    store_.SetParameters(flat_begin, values);
  } else {
    const std::vector<BFloat16> rounded(values.begin(), values.end());
    store_.SetParameters(flat_begin, absl::MakeConstSpan(rounded));
  }
  if (!has_masters()) return;
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
  const Workspace workspace = {At(workspace_), workspace_.size()};
  for (const ShardPart& part : shard_.parts) {
    SumOfSquares(part.count, store_.GradientsOf(part).data(),
                 At(flags_) + part.shard_begin / kFlagBlock, sum, workspace, device_.compute());
  }
}

const float* ShardedOptimizer::GradientsOf(const ShardPart& part) const {
  return options_.offloads ? At(host_gradients_) + part.shard_begin
                           : store_.GradientsOf(part).data();
}

// fp32 weights are the masters.
Elements ShardedOptimizer::WeightsOf(const ShardPart& part) const {
  if (!options_.offloads) return store_.ParametersOf(part);
  if (store_.dtype() == DType::kFloat32) return absl::MakeSpan(MasterOf(part), part.count);
  return host_weights_.span().subspan(part.shard_begin, part.count);
}

void ShardedOptimizer::QueueForHost(const AdamWFactors* factors, const StepControl* control) {
  Stream& stream = device_.compute();
  device_.Copy(factors, At(host_factors_), sizeof(*factors), stream);
  device_.Copy(control, At(host_control_), sizeof(*control), stream);
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    const ShardPart& part = shard_.parts[i];
    device_.Copy(store_.GradientsOf(part).data(), At(host_gradients_) + part.shard_begin,
                 part.count * sizeof(float), stream);
    device_.Record(*on_host_[i], stream);
  }
}

absl::Status ShardedOptimizer::Publish(size_t part) {
  if (options_.offloads) {
    const Elements weights = WeightsOf(shard_.parts[part]);
    device_.Copy(weights.data, store_.ParametersOf(shard_.parts[part]).data, weights.size_bytes(),
                 device_.compute());
  }
  return store_.Updated(part);
}

absl::Status ShardedOptimizer::Update(const AdamWFactors* factors, const StepControl* control) {
  Stream host = Stream::Cpu();
  Stream& stream = options_.offloads ? host : device_.compute();
  if (options_.offloads) {
    QueueForHost(factors, control);
    factors = At(host_factors_);
    control = At(host_control_);
  }
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    const ShardPart& part = shard_.parts[i];
    if (options_.offloads) {
      CONVENE_RETURN_IF_ERROR(device_.Wait(*on_host_[i], options_.timeout));
    }
    const uint8_t* const flags =
        (options_.offloads ? host_flags_.data() : At(flags_)) + part.shard_begin / kFlagBlock;
    float* const first_moment = At(first_moment_) + part.shard_begin;
    float* const second_moment = At(second_moment_) + part.shard_begin;
    const auto update = [&](auto* weights) {
      AdamW(part.count, factors, control, flags, GradientsOf(part), MasterOf(part), weights,
            first_moment, second_moment, stream);
    };
    if (store_.dtype() == DType::kFloat32) {
      update(MasterOf(part));
    } else {
      update(WeightsOf(part).As<BFloat16>().data());
    }
    CONVENE_RETURN_IF_ERROR(Publish(i));
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
    copy(MasterOf(part), At(copy_) + part.shard_begin, part.count);
  }
  copy(At(first_moment_), At(copy_) + shard_.count, shard_.count);
  copy(At(second_moment_), At(copy_) + 2 * shard_.count, shard_.count);
}

absl::StatusOr<ShardedOptimizer::HostState> ShardedOptimizer::State(bool copies_it) {
  store_.AwaitCommunication();
  if (copies()) {
    if (copies_it) QueueCopies(CopyTo::kHost);
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
    return HostState{.master = At(copy_),
                     .first_moment = At(copy_) + shard_.count,
                     .second_moment = At(copy_) + 2 * shard_.count};
  }
  if (device_.kind() != DeviceKind::kCpu && !options_.offloads) {
    return absl::FailedPreconditionError(
        "no host memory was planned for checkpoints (EngineOptions::copies_for_checkpoints)");
  }
  // Copies of an update may still read what the caller is about to fill.
  if (options_.offloads) CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  return HostState{.master = At(master_),
                   .first_moment = At(first_moment_),
                   .second_moment = At(second_moment_)};
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
  Stream host = Stream::Cpu();
  Stream& stream = options_.offloads ? host : device_.compute();
  if (copies()) QueueCopies(CopyTo::kDevice);
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    const ShardPart& part = shard_.parts[i];
    if (store_.dtype() == DType::kBFloat16) {
      ToBFloat16(part.count, MasterOf(part), WeightsOf(part).As<BFloat16>().data(), stream);
    }
    CONVENE_RETURN_IF_ERROR(Publish(i));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
