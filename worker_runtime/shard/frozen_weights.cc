#include "worker_runtime/shard/frozen_weights.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tools/base/status_macros.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {

absl::Status FrozenWeights::Set(MakeWeights make) const {
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
      make(slice, segment.slice_begin + first, absl::MakeSpan(values));
      if (rounds) ToBFloat16(count, values.data(), rounded.data(), host);
      const Elements place = weights.Slice(first, count);
      device_->Copy(rounds ? static_cast<const void*>(rounded.data()) : values.data(), place.data,
                    place.size_bytes(), device_->compute());
    }
  }
  for (size_t i = 0; i < shard.parts.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(store_->Updated(i, device_->compute()));
  }
  return store_->CopyToOtherEnd();
}

}  // namespace convene::worker
