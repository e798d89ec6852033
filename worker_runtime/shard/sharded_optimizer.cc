#include "worker_runtime/shard/sharded_optimizer.h"

#include <string>

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

ShardedOptimizer::ShardedOptimizer(const ParameterTable& table, Collective& dp, Arena& arena)
    : table_(table),
      dp_(dp),
      arena_(arena),
      shard_(MakeFlatShard(table, dp.size(), dp.rank())),
      first_moment_memory_(arena.Declare<float>("optimizer/first moment", shard_.count)),
      second_moment_memory_(arena.Declare<float>("optimizer/second moment", shard_.count)) {}

void ShardedOptimizer::Bind(absl::Span<float> parameters, absl::Span<float> gradients) {
  parameters_ = parameters;
  gradients_ = gradients;
  first_moment_ = arena_.View(first_moment_memory_).data();
  second_moment_ = arena_.View(second_moment_memory_).data();
}

absl::Status ShardedOptimizer::ReduceGradients(Stream& stream) {
  return dp_.ReduceScatter(gradients_, ReduceOp::kSum, stream);
}

double ShardedOptimizer::OwnedSumOfSquares(Stream& stream) const {
  double sum = 0;
  for (const ShardSegment& segment : shard_.segments) {
    if (!table_.slices[segment.parameter].owned) continue;
    sum += SumOfSquares(segment.count, gradients_.data() + segment.flat_begin, stream);
  }
  return sum;
}

void ShardedOptimizer::Update(const AdamWParameters& parameters, Stream& stream) {
  AdamWParameters undecayed = parameters;
  undecayed.weight_decay = 0;
  for (const ShardSegment& segment : shard_.segments) {
    const int64_t local = segment.flat_begin - shard_.begin;
    AdamW(segment.count, table_.slices[segment.parameter].decayed ? parameters : undecayed,
          gradients_.data() + segment.flat_begin, parameters_.data() + segment.flat_begin,
          first_moment_ + local, second_moment_ + local, stream);
  }
}

absl::Status ShardedOptimizer::GatherParameters(Stream& stream) {
  return dp_.AllGather(parameters_, stream);
}

template <typename Piece>
std::vector<Piece> ShardedOptimizer::Pieces(bool owned_only) const {
  std::vector<Piece> pieces;
  for (const ShardSegment& segment : shard_.segments) {
    const ParameterSlice& slice = table_.slices[segment.parameter];
    if (owned_only && !slice.owned) continue;
    const int64_t local = segment.flat_begin - shard_.begin;
    pieces.push_back({PieceOf(slice, segment, ""), parameters_.data() + segment.flat_begin});
    pieces.push_back({PieceOf(slice, segment, "optimizer.first_moment/"), first_moment_ + local});
    pieces.push_back({PieceOf(slice, segment, "optimizer.second_moment/"), second_moment_ + local});
  }
  return pieces;
}

std::vector<PieceToRead> ShardedOptimizer::PiecesToRead() {
  return Pieces<PieceToRead>(/*owned_only=*/false);
}

std::vector<PieceToWrite> ShardedOptimizer::PiecesToWrite() const {
  return Pieces<PieceToWrite>(/*owned_only=*/true);
}

}  // namespace convene::worker
