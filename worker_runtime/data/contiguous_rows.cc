#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker_runtime/data/rows.h"
#include "worker_runtime/data/sample_order.h"

namespace convene::worker {
namespace {

class ContiguousRows final : public Rows {
 public:
  ContiguousRows(int sequence_length, int64_t training_rows, int64_t validation_rows)
      : sequence_length_(sequence_length),
        training_rows_(training_rows),
        validation_rows_(validation_rows) {}

  int64_t training_rows() const override { return training_rows_; }
  int64_t validation_rows() const override { return validation_rows_; }

  int64_t TrainingRow(int64_t seed, int64_t position) const override {
    return SampleAt(seed, training_rows_, position);
  }

  void RangesOf(int64_t row, std::vector<TokenRange>* ranges) const override {
    ranges->assign(1, {row * sequence_length_, sequence_length_ + INT64_C(1)});
  }

  std::string Text() const override {
    return absl::StrCat("training samples of ", sequence_length_, " tokens");
  }

 private:
  const int sequence_length_;
  const int64_t training_rows_;
  const int64_t validation_rows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rows>> CutContiguously(const TokenSource& source,
                                                      const RowsOptions& options) {
  const int64_t length = options.sequence_length;
  const bool has_validation = options.validation_fraction > 0.0;
  const int64_t rows = std::max<int64_t>(0, (source.token_count() - 1) / length);
  const int64_t needed_rows = has_validation ? 2 : 1;
  if (rows < needed_rows) {
    return absl::OutOfRangeError(
        absl::StrCat("data has ", source.token_count(), " tokens; sequence_length ", length,
                     " needs at least ", needed_rows * length + 1, " (one training sample",
                     has_validation ? " and one validation sample" : "",
                     "): give more data or a shorter sequence_length"));
  }
  int64_t validation_rows = 0;
  if (has_validation) {
    validation_rows = std::clamp<int64_t>(
        static_cast<int64_t>(static_cast<double>(rows) * options.validation_fraction), 1, rows - 1);
  }
  return std::make_unique<ContiguousRows>(options.sequence_length, rows - validation_rows,
                                          validation_rows);
}

}  // namespace convene::worker
