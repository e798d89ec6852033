// For tests: a run's state in memory, whatever layout it came from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/state_source.h"

namespace convene::worker::testing {

class MemorySource final : public StateSource {
 public:
  explicit MemorySource(CheckpointInfo info) : info_(std::move(info)) {}

  // Keeps a copy of a piece in fp32, or rounds it to bf16.
  void Add(const PieceToWrite& item, DType dtype) {
    const absl::Span<const float> values = item.data.As<float>();
    available_.push_back(item.piece);
    floats_.emplace_back(values.begin(), values.end());
    rounded_.emplace_back();
    if (dtype == DType::kBFloat16) {
      for (const float value : values) rounded_.back().emplace_back(value);
    }
  }

  const std::string& name() const override { return name_; }
  const CheckpointInfo& info() const override { return info_; }
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override {
    return FillPieces(pieces, name_, available_, [this](int i) -> absl::StatusOr<ConstElements> {
      if (rounded_[i].empty()) return absl::MakeConstSpan(floats_[i]);
      return absl::MakeConstSpan(rounded_[i]);
    });
  }

 private:
  const std::string name_ = "the memory of a test";
  const CheckpointInfo info_;
  std::vector<TensorPiece> available_;
  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<BFloat16>> rounded_;
};

}  // namespace convene::worker::testing
