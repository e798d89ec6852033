#include "worker_runtime/inference/weight_store.h"

#include <limits>
#include <memory>

#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/shard/centre_bias.h"

namespace convene::worker {
namespace {

TensorPiece PieceOf(const ParameterSlice& slice) {
  return {.name = slice.name,
          .global_shape = {slice.global_shape[0], slice.global_shape[1]},
          .local_box = {.offset = {slice.offset[0], slice.offset[1]},
                        .extent = {slice.extent[0], slice.extent[1]}},
          .flat_count = slice.count()};
}

}  // namespace

WeightStore::WeightStore(const std::vector<UnitSpec>& units, DType dtype, Device& device,
                         Arena& arena)
    : placement_(PlaceUnits(units, /*dp=*/1, std::numeric_limits<int64_t>::max())),
      dtype_(dtype),
      device_(device),
      memory_(arena.Declare<char>("weights", placement_.flat_count * SizeOf(dtype))) {}

// A GPU's weights come through one copy in the host's memory.
absl::Status WeightStore::Load(const StateSource& source) {
  char* const weights = At(memory_);
  const bool is_host = device_.kind() == DeviceKind::kCpu;
  Arena staging("weights on their way", device_.staging());
  const ArenaBlock<char> block = staging.Declare<char>("weights", is_host ? 0 : memory_.size());
  CONVENE_RETURN_IF_ERROR(staging.Build());
  char* const host = is_host ? weights : At(block);
  std::vector<PieceToRead> pieces;
  for (const PlacedParameter& slice : placement_.parameters) {
    pieces.push_back(
        {PieceOf(slice),
         {host + slice.flat_offset * SizeOf(dtype_), static_cast<size_t>(slice.count()), dtype_}});
  }
  CONVENE_RETURN_IF_ERROR(source.Read(pieces));
  if (dtype_ == DType::kBFloat16) CONVENE_RETURN_IF_ERROR(CentreBiases(source, host));
  if (!is_host) {
    device_.Copy(host, weights, memory_.size(), device_.compute());
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(absl::Minutes(10)));
  }
  for (const Placement::Unit& unit : placement_.units) {
    std::vector<const void*>& pointers = weights_.emplace_back();
    for (const int tensor : unit.tensors) {
      pointers.push_back(weights + placement_.tensors[tensor].begin * SizeOf(dtype_));
    }
  }
  return absl::OkStatus();
}

absl::Status WeightStore::CentreBiases(const StateSource& source, char* weights) const {
  Stream stream = Stream::Cpu();
  for (const PlacedParameter& slice : placement_.parameters) {
    if (!slice.balances) continue;
    std::vector<float> bias(slice.count());
    CONVENE_RETURN_IF_ERROR(source.Read({{PieceOf(slice), absl::MakeSpan(bias)}}));
    CentreBias(absl::MakeSpan(bias));
    ToBFloat16(slice.count(), bias.data(), reinterpret_cast<BFloat16*>(weights) + slice.flat_offset,
               stream);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const void* const>> WeightStore::Acquire(int unit) {
  return weights_[unit];
}

WeightGradient WeightStore::Gradient(int /*unit*/, int /*tensor*/, bool /*is_first*/) {
  CONVENE_CHECK(false);
}

absl::Status WeightStore::GradientsDone(int /*unit*/, bool /*is_last*/) { CONVENE_CHECK(false); }

}  // namespace convene::worker
