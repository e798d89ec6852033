#include "worker_runtime/shard/sharded_optimizer.h"

#include <algorithm>
#include <string>

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

}  // namespace

ShardedOptimizer::ShardedOptimizer(const ParameterTable& table, const Options& options,
                                   Collective& dp, Collective& dp_gather, Device& device,
                                   Arena& arena)
    : table_(table),
      options_(options),
      dp_(dp),
      dp_gather_(dp_gather),
      device_(device),
      arena_(arena),
      shard_(MakeFlatShard(table, dp.size(), dp.rank())),
      workspace_bytes_(SumOfSquaresWorkspaceBytes(shard_.count, device.kind())),
      master_memory_(
          arena.Declare<float>("optimizer/master weights", has_masters() ? shard_.count : 0)),
      first_moment_memory_(arena.Declare<float>("optimizer/first moment", shard_.count)),
      second_moment_memory_(arena.Declare<float>("optimizer/second moment", shard_.count)),
      reduce_memory_(arena.Declare<BFloat16>(
          "gradients on the wire",
          options.reduce_dtype == DType::kBFloat16 && dp.size() > 1 ? table.flat_count : 0,
          ArenaPart::kCollective)),
      flags_memory_(arena.Declare<uint8_t>("optimizer/flags", shard_.count / kFlagBlock)),
      workspace_memory_(arena.Declare<char>("optimizer/workspace", workspace_bytes_)) {}

void ShardedOptimizer::Bind(Elements parameters, absl::Span<float> gradients) {
  parameters_ = parameters;
  gradients_ = gradients;
  master_ =
      has_masters() ? arena_.View(master_memory_).data() : ParameterShard().As<float>().data();
  first_moment_ = arena_.View(first_moment_memory_).data();
  second_moment_ = arena_.View(second_moment_memory_).data();
  reduced_ = arena_.View(reduce_memory_);
  const std::vector<uint8_t> flags = MakeParameterFlags(table_, shard_);
  uint8_t* const device_flags = arena_.View(flags_memory_).data();
  device_.Copy(flags.data(), device_flags, flags.size(), device_.compute());
  flags_ = device_flags;
  workspace_ = {arena_.View(workspace_memory_).data(), workspace_bytes_};
}

void ShardedOptimizer::SetWeights(int64_t flat_begin, absl::Span<const float> values) {
  Stream& stream = device_.compute();
  const Elements target = parameters_.Slice(flat_begin, values.size());
  if (!has_masters()) {
    device_.Copy(values.data(), target.data, target.size_bytes(), stream);
    return;
  }
  std::vector<BFloat16> rounded;
  rounded.reserve(values.size());
  for (const float value : values) rounded.emplace_back(value);
  device_.Copy(rounded.data(), target.data, target.size_bytes(), stream);
  const int64_t begin = std::max(flat_begin, shard_.begin);
  const int64_t end =
      std::min(flat_begin + static_cast<int64_t>(values.size()), shard_.begin + shard_.count);
  if (begin >= end) return;
  device_.Copy(values.data() + (begin - flat_begin), master_ + (begin - shard_.begin),
               (end - begin) * sizeof(float), stream);
}

absl::Status ShardedOptimizer::ReduceGradients() {
  Stream& stream = device_.compute();
  if (reduced_.empty()) return dp_.ReduceScatter(gradients_, ReduceOp::kSum, stream);
  ToBFloat16(table_.flat_count, gradients_.data(), reduced_.data(), stream);
  CONVENE_RETURN_IF_ERROR(dp_.ReduceScatter(reduced_, ReduceOp::kSum, stream));
  ToFloat(shard_.count, reduced_.data() + shard_.begin, gradients_.data() + shard_.begin, stream);
  return absl::OkStatus();
}

void ShardedOptimizer::SumOwnedSquares(double* sum) {
  SumOfSquares(shard_.count, gradients_.data() + shard_.begin, flags_, sum, workspace_,
               device_.compute());
}

void ShardedOptimizer::Update(const AdamWFactors* factors, const StepControl* control) {
  const float* const gradients = gradients_.data() + shard_.begin;
  Stream& stream = device_.compute();
  if (has_masters()) {
    AdamW(shard_.count, factors, control, flags_, gradients, master_,
          ParameterShard().As<BFloat16>().data(), first_moment_, second_moment_, stream);
  } else {
    AdamW(shard_.count, factors, control, flags_, gradients, master_, master_, first_moment_,
          second_moment_, stream);
  }
}

absl::Status ShardedOptimizer::GatherParameters() {
  return dp_gather_.AllGather(parameters_, device_.compute());
}

absl::StatusOr<ShardedOptimizer::HostState> ShardedOptimizer::State(bool is_wanted) {
  const HostState here = {master_, first_moment_, second_moment_};
  if (device_.kind() == DeviceKind::kCpu) return here;
  if (!host_arena_.has_value()) {
    host_arena_.emplace("checkpoint copy in host memory");
    for (ArenaBlock<float>& block : host_memory_) {
      block = host_arena_->Declare<float>("shard", shard_.count);
    }
    const absl::Status built = host_arena_->Build();
    if (!built.ok()) {
      host_arena_.reset();
      return built;
    }
  }
  const auto at = [this](int i) { return host_arena_->View(host_memory_[i]).data(); };
  const HostState copy = {at(0), at(1), at(2)};
  if (is_wanted) {
    const size_t bytes = shard_.count * sizeof(float);
    Stream& stream = device_.compute();
    device_.Copy(here.master, copy.master, bytes, stream);
    device_.Copy(here.first_moment, copy.first_moment, bytes, stream);
    device_.Copy(here.second_moment, copy.second_moment, bytes, stream);
  }
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  return copy;
}

template <typename Piece>
std::vector<Piece> ShardedOptimizer::Pieces(const HostState& state, bool owned_only) const {
  std::vector<Piece> pieces;
  for (const ShardSegment& segment : shard_.segments) {
    const ParameterSlice& slice = table_.slices[segment.parameter];
    if (owned_only && !slice.owned) continue;
    const int64_t local = segment.flat_begin - shard_.begin;
    pieces.push_back({PieceOf(slice, segment, ""), state.master + local});
    pieces.push_back(
        {PieceOf(slice, segment, "optimizer.first_moment/"), state.first_moment + local});
    pieces.push_back(
        {PieceOf(slice, segment, "optimizer.second_moment/"), state.second_moment + local});
  }
  return pieces;
}

absl::StatusOr<std::vector<PieceToWrite>> ShardedOptimizer::PiecesToWrite() {
  CONVENE_ASSIGN_OR_RETURN(const HostState state, State(/*is_wanted=*/true));
  return Pieces<PieceToWrite>(state, /*owned_only=*/true);
}

absl::StatusOr<std::vector<PieceToRead>> ShardedOptimizer::PiecesToRead() {
  CONVENE_ASSIGN_OR_RETURN(const HostState state, State(/*is_wanted=*/false));
  return Pieces<PieceToRead>(state, /*owned_only=*/false);
}

absl::Status ShardedOptimizer::FinishRead() {
  Stream& stream = device_.compute();
  if (host_arena_.has_value()) {
    float* const targets[] = {master_, first_moment_, second_moment_};
    for (int i = 0; i < 3; ++i) {
      device_.Copy(host_arena_->View(host_memory_[i]).data(), targets[i],
                   shard_.count * sizeof(float), stream);
    }
  }
  if (has_masters()) {
    ToBFloat16(shard_.count, master_, ParameterShard().As<BFloat16>().data(), stream);
  }
  return GatherParameters();
}

}  // namespace convene::worker
