#include "worker_runtime/model/embedding.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/embedding.h"

namespace convene::worker {

template <typename T>
ScratchSizes Embedding<T>::scratch(DeviceKind device) const {
  return {.workspace_bytes = EmbeddingWorkspaceBytes(rows_, hidden_, device)};
}

template <typename T>
absl::Status Embedding<T>::Forward(const Pass<T>& pass, T* target, Flow<T>& flow) {
  flow = {.residual = target};
  const ChunkedRows& rows = *pass.around.rows;
  T* const sum = rows.is_split() ? pass.around.hidden : target;
  CONVENE_RETURN_IF_ERROR(VocabularyParallelEmbedding(vocabulary_, rows_, hidden_, pass.inputs,
                                                      pass.Weight(kEmbeddingTable), sum, rows,
                                                      pass.stream));
  if (!rows.is_split()) return absl::OkStatus();
  for (int c = 0; c < rows.chunks(); ++c) {
    pass.around.device->Copy(rows.Own(sum, c), rows.Packed(target, c),
                             rows.chunk().own_count() * sizeof(T), pass.stream);
  }
  return absl::OkStatus();
}

// A microbatch has few of the table's tokens, so a step's first one zeroes the whole table, unless
// the table is the head too, whose product has written every row.
template <typename T>
absl::Status Embedding<T>::Backward(const Pass<T>& pass, T* gradient) {
  CONVENE_RETURN_IF_ERROR(pass.around.rows->Gather(gradient, pass.stream));
  const WeightGradient table = pass.Gradient(kEmbeddingTable);
  if (!table.adds) {
    const OpScope scope(pass.stream, "ZeroEmbeddingGradient");
    pass.around.device->Zero(table.data, sizeof(float) * vocabulary_.size() * hidden_, pass.stream);
  }
  EmbeddingBackward(rows_, hidden_, vocabulary_.begin, vocabulary_.end, pass.inputs, gradient,
                    table.data, pass.around.workspace, pass.stream);
  return absl::OkStatus();
}

template class Embedding<float>;
template class Embedding<BFloat16>;

}  // namespace convene::worker
