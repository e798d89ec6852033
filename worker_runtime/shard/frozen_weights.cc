#include "worker_runtime/shard/frozen_weights.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tools/base/status_macros.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/shard/centre_bias.h"

namespace convene::worker {
namespace {

// The values before they are rounded.
void MakeToRound(MakeWeights make, const ParameterSlice& slice, int64_t first,
                 absl::Span<float> values) {
  if (!slice.balances) return make(slice, first, values);
  std::vector<float> bias(slice.count());
  make(slice, 0, absl::MakeSpan(bias));
  CentreBias(absl::MakeSpan(bias));
  std::copy_n(bias.begin() + first, values.size(), values.begin());
}

}  // namespace

absl::Status FrozenWeights::Fill(MakeWeights make) const {
  CONVENE_RETURN_IF_ERROR(device_->Synchronize(timeout_));
  const FlatShard& shard = store_->shard();
  const bool rounds = store_->dtype() == DType::kBFloat16;
  Stream host = Stream::Cpu();
  std::vector<float> values;
  std::vector<BFloat16> rounded;
  for (const ShardSegment& segment : shard.segments) {
    const ParameterSlice& slice = store_->placement().parameters[segment.parameter];
    const ShardPart& part = shard.parts[segment.part];
    const Elements weights =
        store_->ParametersOf(part).Slice(segment.flat_begin - part.flat_begin, segment.count);
    for (int64_t first = 0; first < segment.count; first += kPieceOfWeights) {
      const int64_t count = std::min(kPieceOfWeights, segment.count - first);
      values.resize(count);
      rounded.resize(rounds ? count : 0);
      if (rounds) {
        MakeToRound(make, slice, segment.slice_begin + first, absl::MakeSpan(values));
        ToBFloat16(count, values.data(), rounded.data(), host);
      } else {
        make(slice, segment.slice_begin + first, absl::MakeSpan(values));
      }
      const Elements place = weights.Slice(first, count);
      device_->Copy(rounds ? static_cast<const void*>(rounded.data()) : values.data(), place.data,
                    place.size_bytes(), device_->compute());
    }
  }
  return absl::OkStatus();
}

absl::Status FrozenWeights::Publish() const {
  for (size_t i = 0; i < store_->shard().parts.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(store_->Updated(i, device_->compute()));
  }
  return store_->CopyToOtherEnd();
}

}  // namespace convene::worker
