#include "worker_runtime/model/embedding.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"

namespace convene::worker {

template <typename T>
Embedding<T>::Embedding(const EmbeddingShape& shape, Arena& arena)
    : shape_(shape),
      positions_(arena.Declare<int32_t>("scratch/positions",
                                        shape.positions.size() > 0 ? shape.rows() : 0)) {}

template <typename T>
ScratchSizes Embedding<T>::scratch(DeviceKind device) const {
  return {.workspace_bytes = EmbeddingWorkspaceBytes(shape_.rows(), shape_.hidden, device)};
}

template <typename T>
typename Embedding<T>::Tables Embedding<T>::TablesOf(const Pass<T>& pass) const {
  Tables all = {{{shape_.vocabulary, pass.inputs, pass.Weight(kEmbeddingTable)}},
                {kEmbeddingTable}};
  if (shape_.positions.size() == 0) return all;
  if (pass.around.cache != nullptr) {
    CachedPositions(pass);
  } else {
    TokenPositions(shape_.batch, shape_.length, shape_.runs, pass.documents.begin, At(positions_),
                   pass.stream);
  }
  all.tables.push_back({shape_.positions, At(positions_), pass.Weight(kPositionTable)});
  all.roles.push_back(kPositionTable);
  return all;
}

// A pass's other tokens belong to no sequence: they may have any position.
template <typename T>
void Embedding<T>::CachedPositions(const Pass<T>& pass) const {
  const KeyValueCache& cache = *pass.around.cache;
  for (const CachedRun& run : cache.runs()) {
    pass.around.device->Copy(cache.positions() + run.begin, At(positions_) + run.first,
                             run.count * sizeof(int32_t), pass.stream);
  }
}

template <typename T>
void Embedding<T>::Scale(int64_t count, T* x, Stream& stream) const {
  if (shape_.scale != 1) ScaleInPlace(count, shape_.scale, x, stream);
}

template <typename T>
absl::Status Embedding<T>::Forward(const Pass<T>& pass, T* target, Flow<T>& flow) {
  flow = {.residual = target};
  const ChunkedRows& rows = *pass.around.rows;
  T* const sum = rows.is_split() ? pass.around.hidden : target;
  CONVENE_RETURN_IF_ERROR(VocabularyParallelEmbedding<T>(TablesOf(pass).tables, shape_.rows(),
                                                         shape_.hidden, sum, rows, pass.stream));
  for (int c = 0; rows.is_split() && c < rows.chunks(); ++c) {
    pass.around.device->Copy(rows.Own(sum, c), rows.Packed(target, c),
                             rows.chunk().own_count() * sizeof(T), pass.stream);
  }
  Scale(static_cast<int64_t>(rows.own_count()), target, pass.stream);
  return absl::OkStatus();
}

// A microbatch has few of a table's rows, so a step's first one zeroes the whole table, unless the
// table is the head too, whose product has written every row.
template <typename T>
absl::Status Embedding<T>::Backward(const Pass<T>& pass, T* gradient) {
  const Tables all = TablesOf(pass);
  absl::InlinedVector<WeightGradient, 2> gradients;
  for (const int role : all.roles) gradients.push_back(pass.Gradient(role));
  if (gradients.front().data == nullptr) return absl::OkStatus();  // the tables are frozen
  CONVENE_RETURN_IF_ERROR(pass.around.rows->Gather(gradient, pass.stream));
  Scale(int64_t{shape_.rows()} * shape_.hidden, gradient, pass.stream);
  for (size_t i = 0; i < all.tables.size(); ++i) {
    const auto& [slice, numbers, weights] = all.tables[i];
    const WeightGradient& table = gradients[i];
    if (!table.adds) {
      const OpScope scope(pass.stream, "ZeroEmbeddingGradient");
      pass.around.device->Zero(table.data, sizeof(float) * slice.size() * shape_.hidden,
                               pass.stream);
    }
    EmbeddingBackward(shape_.rows(), shape_.hidden, slice.begin, slice.end, numbers, gradient,
                      table.data, pass.around.workspace, pass.stream);
  }
  return absl::OkStatus();
}

template class Embedding<float>;
template class Embedding<BFloat16>;

}  // namespace convene::worker
