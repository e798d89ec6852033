#include "worker_runtime/ops/token_positions.h"

#include "worker_runtime/ops/cpu/cpu_ops.h"

namespace convene::worker::cpu {

void TokenPositions(int batch, int length, const TokenRuns& runs, const int32_t* document_begin,
                    int32_t* positions, Stream& /*stream*/) {
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t begins = row * runs.begin_stride + runs.begin_offset;
    for (int t = 0; t < length; ++t) {
      const int position = runs.first[t / runs.run] + t % runs.run;
      positions[row * length + t] =
          position - (document_begin == nullptr ? 0 : document_begin[begins + t]);
    }
  }
}

}  // namespace convene::worker::cpu
