#include "worker_runtime/weights/compare_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/weights/model_tensors.h"

namespace convene::worker {
namespace {

constexpr int64_t kRunElements = int64_t{1} << 24;

absl::Status CheckSameShape(const Weights& a, const Weights& b) {
  if (WeightsShapeText(a.config) == WeightsShapeText(b.config)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(a.source->name(), " holds a model of shape ",
                                                 a.source->info().model, ", and ", b.source->name(),
                                                 " one of ", b.source->info().model));
}

class AveragedSource final : public StateSource {
 public:
  explicit AveragedSource(std::vector<Weights> all)
      : all_(std::move(all)), name_(absl::StrCat("the average of ", all_.size())) {}

  const std::string& name() const override { return name_; }
  const CheckpointInfo& info() const override { return all_.front().source->info(); }
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override;

 private:
  const std::vector<Weights> all_;
  const std::string name_;
};

absl::Status AveragedSource::Read(const std::vector<PieceToRead>& pieces) const {
  for (const PieceToRead& item : pieces) {
    std::vector<double> sum(item.piece.flat_count);
    std::vector<float> values(item.piece.flat_count);
    for (const Weights& weights : all_) {
      CONVENE_RETURN_IF_ERROR(weights.source->Read({{item.piece, absl::MakeSpan(values)}}));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    const auto share = static_cast<double>(all_.size());
    for (size_t i = 0; i < sum.size(); ++i) {
      const auto mean = static_cast<float>(sum[i] / share);
      if (item.data.dtype == DType::kFloat32) {
        item.data.As<float>()[i] = mean;
      } else {
        item.data.As<BFloat16>()[i] = BFloat16(mean);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorDifference>> CompareWeights(const Weights& a, const Weights& b) {
  CONVENE_RETURN_IF_ERROR(CheckSameShape(a, b));
  std::vector<TensorDifference> differences;
  std::vector<float> of_a;
  std::vector<float> of_b;
  for (const ModelTensor& tensor : ModelTensors(a.config)) {
    TensorDifference largest = {.name = tensor.name};
    for (const TensorPiece& piece : RunsOf(tensor, kRunElements)) {
      of_a.resize(piece.flat_count);
      of_b.resize(piece.flat_count);
      CONVENE_RETURN_IF_ERROR(a.source->Read({{piece, absl::MakeSpan(of_a)}}));
      CONVENE_RETURN_IF_ERROR(b.source->Read({{piece, absl::MakeSpan(of_b)}}));
      for (int64_t i = 0; i < piece.flat_count; ++i) {
        double difference = std::abs(static_cast<double>(of_a[i]) - of_b[i]);
        if (std::isnan(difference)) difference = std::numeric_limits<double>::infinity();
        if (difference <= largest.largest) continue;
        const int64_t width = piece.local_box.extent[1];
        largest.largest = difference;
        largest.row = piece.local_box.offset[0] + i / width;
        largest.column = piece.local_box.offset[1] + i % width;
      }
    }
    if (largest.largest > 0) differences.push_back(std::move(largest));
  }
  std::stable_sort(differences.begin(), differences.end(),
                   [](const auto& x, const auto& y) { return x.largest > y.largest; });
  return differences;
}

absl::StatusOr<Weights> AverageWeights(std::vector<Weights> all) {
  for (const Weights& weights : all) {
    CONVENE_RETURN_IF_ERROR(CheckSameShape(all.front(), weights));
  }
  const ModelConfig config = all.front().config;
  const absl::StatusOr<std::string> tokenizer = all.front().tokenizer;
  const int longest_text = all.front().longest_text;
  return Weights{.config = config,
                 .source = std::make_unique<AveragedSource>(std::move(all)),
                 .tokenizer = tokenizer,
                 .longest_text = longest_text};
}

}  // namespace convene::worker
