#include "worker_runtime/weights/merged_weights.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/model/adapter.h"
#include "worker_runtime/model/parameters.h"

namespace convene::worker {
namespace {

// All columns of rows [begin, end), or all rows of columns [begin, end), of a factor.
TensorPiece PartOf(const std::string& name, const std::array<int64_t, 2>& shape, int axis,
                   int64_t begin, int64_t end) {
  TensorPiece piece = {.name = name,
                       .global_shape = {shape.begin(), shape.end()},
                       .local_box = {{0, 0}, {shape.begin(), shape.end()}}};
  piece.local_box.offset[axis] = begin;
  piece.local_box.extent[axis] = end - begin;
  piece.flat_count = piece.local_box.elements();
  return piece;
}

class MergedWeights final : public StateSource {
 public:
  MergedWeights(std::unique_ptr<StateSource> base, Adapter adapter)
      : base_(std::move(base)), adapter_(std::move(adapter)), info_(base_->info()) {}

  const std::string& name() const override { return adapter_.source->name(); }
  const CheckpointInfo& info() const override { return info_; }
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override;

 private:
  // Adds scale B A to the piece's elements.
  absl::Status Add(const TensorPiece& piece, absl::Span<float> values) const;

  const std::unique_ptr<StateSource> base_;
  const Adapter adapter_;
  const CheckpointInfo info_;
};

absl::Status MergedWeights::Read(const std::vector<PieceToRead>& pieces) const {
  std::vector<float> sum;
  for (const PieceToRead& item : pieces) {
    const TensorPiece& piece = item.piece;
    const absl::string_view matrix = absl::StripSuffix(piece.name, ".weight");
    if (piece.flat_count == 0 || !adapter_.tensors.contains(AdapterA(matrix))) {
      CONVENE_RETURN_IF_ERROR(base_->Read({item}));
      continue;
    }
    const bool rounds = item.data.dtype == DType::kBFloat16;
    sum.resize(rounds ? piece.flat_count : 0);
    const absl::Span<float> values = rounds ? absl::MakeSpan(sum) : item.data.As<float>();
    CONVENE_RETURN_IF_ERROR(base_->Read({{piece, values}}));
    CONVENE_RETURN_IF_ERROR(Add(piece, values));
    if (!rounds) continue;
    const absl::Span<BFloat16> rounded = item.data.As<BFloat16>();
    for (size_t i = 0; i < sum.size(); ++i) rounded[i] = BFloat16(sum[i]);
  }
  return absl::OkStatus();
}

absl::Status MergedWeights::Add(const TensorPiece& piece, absl::Span<float> values) const {
  const absl::string_view matrix = absl::StripSuffix(piece.name, ".weight");
  const std::string a_name = AdapterA(matrix);
  const std::string b_name = AdapterB(matrix);
  const Box& box = piece.local_box;
  const int64_t columns = box.extent[1];
  const int64_t first_row = box.offset[0] + piece.flat_begin / columns;
  const int64_t end_row = box.offset[0] + (piece.flat_begin + piece.flat_count - 1) / columns + 1;
  const int64_t rank = adapter_.config.rank;
  std::vector<float> a(rank * columns);
  std::vector<float> b((end_row - first_row) * rank);
  CONVENE_RETURN_IF_ERROR(adapter_.source->Read(
      {{PartOf(a_name, adapter_.tensors.at(a_name), 1, box.offset[1], box.offset[1] + columns),
        absl::MakeSpan(a)},
       {PartOf(b_name, adapter_.tensors.at(b_name), 0, first_row, end_row), absl::MakeSpan(b)}}));
  const auto scale = static_cast<float>(adapter_.config.scale());
  std::vector<float> added(columns);
  for (int64_t row = first_row; row < end_row; ++row) {
    // Of this row, among the elements of the box.
    const int64_t row_begin = (row - box.offset[0]) * columns;
    const int64_t begin = std::max(row_begin, piece.flat_begin);
    const int64_t end = std::min(row_begin + columns, piece.flat_begin + piece.flat_count);
    std::fill(added.begin(), added.end(), 0.0f);
    for (int64_t k = 0; k < rank; ++k) {
      const float factor = b[(row - first_row) * rank + k];
      const float* const of_a = a.data() + k * columns;
      for (int64_t c = begin - row_begin; c < end - row_begin; ++c) added[c] += factor * of_a[c];
    }
    for (int64_t i = begin; i < end; ++i) {
      values[i - piece.flat_begin] += scale * added[i - row_begin];
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Weights> MergeAdapter(Weights base, Adapter adapter) {
  ModelConfig model = base.config;
  model.adapter = adapter.config;
  absl::Status fits = ValidateAdapters(model, /*tp_size=*/1);
  fits.Update(CheckAdapterFits(adapter, model));
  if (!fits.ok()) return Annotate(fits, adapter.source->name());
  base.source = std::make_unique<MergedWeights>(std::move(base.source), std::move(adapter));
  return base;
}

}  // namespace convene::worker
